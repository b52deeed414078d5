// `fixed_arithmetic`: a + alpha * b, a - alpha * b or a * b, exactly and then cast.
`default_nettype none

module prove_fixed_arithmetic #(
    parameter int A_WIDTH = 3,
    parameter int A_FRAC = 1,
    parameter bit A_SIGNED = 1'b1,
    parameter int B_WIDTH = 3,
    parameter int B_FRAC = 2,
    parameter bit B_SIGNED = 1'b1,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0,
    parameter int OPERATION = 0,
    parameter int ALPHA = 1,
    parameter int ALPHA_FRAC = 0,
    parameter bit HAS_OPERAND_REGISTER = 1'b0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [A_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [B_WIDTH-1:0] data_in_1,
    input  wire logic data_in_1_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_in_1_ready, data_out_0_valid, lawful_0, lawful_1;
  logic [OUT_WIDTH-1:0] data_out_0, expected;
  logic signed [23:0] a, b, scaled_a, scaled_b, exact;

  assign a = 24'($signed({A_SIGNED && data_in_0[A_WIDTH-1], data_in_0}));
  assign b = 24'($signed({B_SIGNED && data_in_1[B_WIDTH-1], data_in_1}));
  // In steps of 2**-(A_FRAC + B_FRAC + ALPHA_FRAC): both terms, and the product.
  assign scaled_a = a * 24'(2 ** (B_FRAC + ALPHA_FRAC));
  assign scaled_b = b * 24'(ALPHA * 2 ** A_FRAC);
  assign exact = OPERATION == 0 ? scaled_a + scaled_b : OPERATION == 1 ? scaled_a - scaled_b
      : a * b;

  fixed_arithmetic #(
      .DATA_IN_0_PRECISION_0 (A_WIDTH),
      .DATA_IN_0_PRECISION_1 (A_FRAC),
      .DATA_IN_0_IS_SIGNED   (A_SIGNED),
      .DATA_IN_1_PRECISION_0 (B_WIDTH),
      .DATA_IN_1_PRECISION_1 (B_FRAC),
      .DATA_IN_1_IS_SIGNED   (B_SIGNED),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING   (ROUNDING),
      .DATA_OUT_0_OVERFLOW   (OVERFLOW),
      .OPERATION             (OPERATION),
      .ALPHA                 (ALPHA),
      .ALPHA_FRAC            (ALPHA_FRAC),
      .HAS_OPERAND_REGISTER  (HAS_OPERAND_REGISTER)
  ) dut (
      .*
  );

  spec_cast #(
      .IN_FRAC(A_FRAC + B_FRAC + ALPHA_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC), .OUT_SIGNED(OUT_SIGNED),
      .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
  ) u_spec (
      .x(exact),
      .y(expected)
  );

  lawful_source #(.WIDTH($bits(data_in_0))) u_source_0 (
      .clk(clk), .rst(rst), .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready),
      .is_lawful(lawful_0)
  );

  lawful_source #(.WIDTH($bits(data_in_1))) u_source_1 (
      .clk(clk), .rst(rst), .data(data_in_1), .valid(data_in_1_valid), .ready(data_in_1_ready),
      .is_lawful(lawful_1)
  );

  // Both operands of a pair are taken in the same cycle.
  logic [2:0] stream_broken;
  assign broken = stream_broken | 3'((data_in_0_valid && data_in_0_ready) != (data_in_1_valid && data_in_1_ready) && lawful_0 && lawful_1);

  logic [$bits(data_out_0)-1:0] head;

  stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(lawful_0 && lawful_1),
      .is_fed   (data_in_0_valid && data_in_1_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready),
      .expected (expected),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (stream_broken)
  );

endmodule

`default_nettype wire
