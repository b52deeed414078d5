// Every mode of `fixed_cast` beside the definition of rounding and saturation; DUTs of their own.
localparam int FRACS = 3;
logic [64*FRACS-1:0] is_wrong;
logic [FRACS-1:0] is_half_wrong;

for (genvar mode = 0; mode < 64 * FRACS; mode++) begin : g_mode
  localparam int IN_SIGNED = mode % 2;
  localparam int OUT_SIGNED = mode / 2 % 2;
  localparam int ROUNDING = mode / 4 % 4;
  localparam int OVERFLOW = mode / 16 % 4;
  // Fractional bits of the input, where the output has one.
  localparam int AT = mode / 64;
  localparam int IN_FRAC = AT == 0 ? -1 : AT == 1 ? 3 : 7;

  if (OVERFLOW == 3 || OVERFLOW == 1 && OUT_SIGNED == 0) begin : g_none
    assign is_wrong[mode] = 1'b0;
  end else begin : g_one
    logic [OUT_WIDTH-1:0] found, expected;

    fixed_cast #(
        .DATA_IN_0_PRECISION_0 (IN_WIDTH),
        .DATA_IN_0_PRECISION_1 (IN_FRAC),
        .DATA_IN_0_IS_SIGNED   (IN_SIGNED == 1),
        .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
        .DATA_OUT_0_PRECISION_1(1),
        .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED == 1),
        .DATA_OUT_0_ROUNDING   (ROUNDING),
        .DATA_OUT_0_OVERFLOW   (OVERFLOW)
    ) dut (
        .data_in_0 (data_in_0),
        .data_out_0(found)
    );

    spec_cast #(
        .WORK(10), .IN_FRAC(IN_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(1),
        .OUT_SIGNED(OUT_SIGNED == 1), .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
    ) u_spec (
        .x(10'($signed({IN_SIGNED == 1 && data_in_0[IN_WIDTH-1], data_in_0}))),
        .y(expected)
    );

    assign is_wrong[mode] = found != expected;
  end
end

for (genvar dropped = 1; dropped <= FRACS; dropped++) begin : g_half
  localparam int WIDE = IN_WIDTH + dropped + 2;
  logic [OUT_WIDTH-1:0] found, expected;

  fixed_cast #(
      .DATA_IN_0_PRECISION_0 (WIDE),
      .DATA_IN_0_PRECISION_1 (1 + dropped),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(1),
      .IS_HALF_ADDED         (1'b1)
  ) dut (
      .data_in_0 (WIDE'($signed(data_in_0)) + WIDE'(2 ** (dropped - 1))),
      .data_out_0(found)
  );

  spec_cast #(.WORK(10), .IN_FRAC(1 + dropped), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(1)) u_spec (
      .x(10'($signed(data_in_0))),
      .y(expected)
  );

  assign is_half_wrong[dropped-1] = found != expected;
end

assign broken = {2'b00, !rst && (|is_wrong || |is_half_wrong)};
