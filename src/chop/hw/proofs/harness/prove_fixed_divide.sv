// `fixed_divide`: the exact quotient, cast by the definition, for every divisor that may be chosen,
// two enabled cycles after the dividend, or three where the product has parts.
`default_nettype none

module prove_fixed_divide #(
    parameter int IN_WIDTH = 6,
    parameter int IN_FRAC = 2,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0,
    parameter int DIVISOR = 6,
    parameter bit IS_CHOSEN = 1'b0,
    parameter bit HAS_PARTS = 1'b0,
    parameter int PART = 18
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic enable,
    input  wire logic [IN_WIDTH-1:0] data_in_0,
    input  wire logic [$clog2(DIVISOR+1)-1:0] divisor,
    output      logic [2:0] broken
);

  logic [OUT_WIDTH-1:0] data_out_0;
  logic [DIVISOR:IS_CHOSEN?1:DIVISOR] is_wrong;

  fixed_divide #(
      .DATA_IN_0_PRECISION_0 (IN_WIDTH),
      .DATA_IN_0_PRECISION_1 (IN_FRAC),
      .DIVISOR               (DIVISOR),
      .IS_CHOSEN             (IS_CHOSEN),
      .HAS_PARTS             (HAS_PARTS),
      .PART                  (PART),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING   (ROUNDING),
      .DATA_OUT_0_OVERFLOW   (OVERFLOW)
  ) dut (
      .*
  );

  // What went in so many enabled cycles ago, if there were so many.
  localparam int LATENCY = HAS_PARTS ? 3 : 2;
  localparam int BY = $clog2(DIVISOR + 1);
  logic [LATENCY-1:0][IN_WIDTH-1:0] given_q;
  logic [LATENCY-1:0][BY-1:0] by_q;
  logic [LATENCY-1:0] is_given_q = '0;

  always_ff @(posedge clk) begin
    if (enable) begin
      given_q    <= (LATENCY * IN_WIDTH)'({given_q, data_in_0});
      by_q       <= (LATENCY * BY)'({by_q, divisor});
      is_given_q <= LATENCY'({is_given_q, 1'b1});
    end
    if (rst) is_given_q <= '0;
  end

  for (genvar by = IS_CHOSEN ? 1 : DIVISOR; by <= DIVISOR; by++) begin : g_by
    logic [OUT_WIDTH-1:0] expected;
    spec_cast #(
        .WORK(9), .IN_FRAC(IN_FRAC), .DIVISOR(by), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC),
        .OUT_SIGNED(OUT_SIGNED), .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
    ) u_spec (
        .x(9'($signed(given_q[LATENCY-1]))),
        .y(expected)
    );
    assign is_wrong[by] = data_out_0 != expected && (!IS_CHOSEN || 32'(by_q[LATENCY-1]) == by);
  end

  assign broken = {2'b00, |is_wrong && is_given_q[LATENCY-1] && !rst};  // no stream: there are no other laws

endmodule

`default_nettype wire
