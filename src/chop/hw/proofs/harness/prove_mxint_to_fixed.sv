// `mxint_to_fixed`: each mantissa times 2**exponent of its beat, then cast.
`default_nettype none

module prove_mxint_to_fixed #(
    parameter int MANTISSA = 3,
    parameter int FRAC = 2,
    parameter int EXPONENT = 2,
    parameter int TOP = 3,
    parameter int LANES = 2,
    parameter int OUT_WIDTH = 3,
    parameter int OUT_FRAC = 0,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [LANES*MANTISSA+EXPONENT-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [LANES*OUT_WIDTH-1:0] data_out_0, expected, head;
  logic [EXPONENT-1:0] exponent;

  mxint_to_fixed #(
      .DATA_IN_0_PRECISION_0      (MANTISSA),
      .DATA_IN_0_PRECISION_1      (FRAC),
      .DATA_IN_0_EXPONENT_WIDTH   (EXPONENT),
      .DATA_IN_0_TOP              (TOP),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED       (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING        (ROUNDING),
      .DATA_OUT_0_OVERFLOW        (OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) dut (
      .*
  );

  assign exponent = data_in_0[LANES*MANTISSA+:EXPONENT];

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [23:0] x;
    logic [MANTISSA-1:0] code;
    assign code = data_in_0[lane*MANTISSA+:MANTISSA];
    always_comb begin
      x = 24'($signed(code));
      for (int k = 0; k < 2 ** EXPONENT; k++) if (k < 32'(exponent)) x = x + x;
    end
    spec_cast #(
        .IN_FRAC(FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC), .OUT_SIGNED(OUT_SIGNED),
        .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
    ) u_spec (
        .x(x),
        .y(expected[lane*OUT_WIDTH+:OUT_WIDTH])
    );
  end

  // No beat has an exponent above the largest.
  logic lawful_q = 1'b1;
  logic is_exponent;
  assign is_exponent = !data_in_0_valid || 32'(exponent) <= TOP;
  always_ff @(posedge clk) lawful_q <= rst || lawful_q && is_exponent;

  stream_laws #(.WIDTH(LANES * OUT_WIDTH), .SLOTS(4), .LATENCY(3), .GAP(4)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(lawful_q && is_exponent),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready),
      .expected (expected),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
