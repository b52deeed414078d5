// `fixed_leaky_relu`: x, or slope / 2**SLOPE_FRAC times x where x is negative. The slope is SLOPE, or
// comes from a stream of its own, which may stall.
`default_nettype none

module prove_fixed_leaky_relu #(
    parameter int IN_WIDTH = 5,
    parameter int IN_FRAC = 3,
    parameter bit IN_SIGNED = 1'b1,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0,
    parameter int SLOPE = 3,
    parameter int SLOPE_FRAC = 2,
    parameter bit HAS_WEIGHT = 1'b0,
    parameter int W_WIDTH = 3
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [W_WIDTH-1:0] weight,
    input  wire logic weight_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, weight_ready, data_out_0_valid, taken, is_reset_q = 1'b0;
  logic [2:0] laws;
  logic [OUT_WIDTH-1:0] data_out_0, expected;

  logic signed [23:0] x;
  assign x = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));
  logic signed [23:0] slope, exact;
  assign slope = HAS_WEIGHT ? 24'($signed(weight)) : 24'(SLOPE);
  assign exact = x < 0 ? x * slope : x * 24'(2 ** SLOPE_FRAC);

  fixed_leaky_relu #(
      .DATA_IN_0_PRECISION_0 (IN_WIDTH),
      .DATA_IN_0_PRECISION_1 (IN_FRAC),
      .DATA_IN_0_IS_SIGNED   (IN_SIGNED),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING   (ROUNDING),
      .DATA_OUT_0_OVERFLOW   (OVERFLOW),
      .HAS_WEIGHT            (HAS_WEIGHT),
      .WEIGHT_PRECISION_0    (W_WIDTH),
      .NEGATIVE_SLOPE        (SLOPE),
      .NEGATIVE_SLOPE_FRAC   (SLOPE_FRAC)
  ) dut (
      .*
  );

  spec_cast #(
      .IN_FRAC(IN_FRAC + SLOPE_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC), .OUT_SIGNED(OUT_SIGNED),
      .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
  ) u_spec (
      .x(exact),
      .y(expected)
  );

  logic [$bits(data_out_0)-1:0] head;

  assign taken = data_in_0_valid && data_in_0_ready;

  always_ff @(posedge clk) is_reset_q <= is_reset_q || rst;

  stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid && (weight_valid || !HAS_WEIGHT)),
      .is_moving(1'b1),
      .push     (taken),
      .expected (expected),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (laws)
  );

  // An element and its slope are taken together.
  assign broken = laws
      | {2'b0, HAS_WEIGHT && is_reset_q && !rst && taken != (weight_valid && weight_ready)};

endmodule

`default_nettype wire
