// `fixed_batch_norm`: weight * x + bias, exactly and then cast; three streams in step.
`default_nettype none

module prove_fixed_batch_norm #(
    parameter int X_WIDTH = 2,
    parameter int X_FRAC = 1,
    parameter bit X_SIGNED = 1'b1,
    parameter int W_WIDTH = 2,
    parameter int W_FRAC = 1,
    parameter int B_WIDTH = 2,
    parameter int B_FRAC = 0,
    parameter int OUT_WIDTH = 3,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [X_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [W_WIDTH-1:0] weight,
    input  wire logic weight_valid,
    input  wire logic [B_WIDTH-1:0] bias,
    input  wire logic bias_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, weight_ready, bias_ready, data_out_0_valid, is_reset_q = 1'b0;
  logic [OUT_WIDTH-1:0] data_out_0, expected, head;
  logic [2:0] taken, laws;

  fixed_batch_norm #(
      .DATA_IN_0_PRECISION_0 (X_WIDTH),
      .DATA_IN_0_PRECISION_1 (X_FRAC),
      .DATA_IN_0_IS_SIGNED   (X_SIGNED),
      .WEIGHT_PRECISION_0    (W_WIDTH),
      .WEIGHT_PRECISION_1    (W_FRAC),
      .BIAS_PRECISION_0      (B_WIDTH),
      .BIAS_PRECISION_1      (B_FRAC),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING   (ROUNDING),
      .DATA_OUT_0_OVERFLOW   (OVERFLOW)
  ) dut (
      .*
  );

  // In steps of 2**-(X_FRAC + W_FRAC + B_FRAC).
  logic signed [23:0] x, w, b, exact;
  assign x     = 24'($signed({X_SIGNED && data_in_0[X_WIDTH-1], data_in_0}));
  assign w     = 24'($signed(weight));
  assign b     = 24'($signed(bias));
  assign exact = x * w * 24'(2 ** B_FRAC) + b * 24'(2 ** (X_FRAC + W_FRAC));

  spec_cast #(
      .IN_FRAC(X_FRAC + W_FRAC + B_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC),
      .OUT_SIGNED(OUT_SIGNED), .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
  ) u_spec (
      .x(exact),
      .y(expected)
  );

  assign taken = {
    bias_valid && bias_ready, weight_valid && weight_ready, data_in_0_valid && data_in_0_ready
  };

  always_ff @(posedge clk) is_reset_q <= is_reset_q || rst;

  stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(4), .LATENCY(3), .GAP(4)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid && weight_valid && bias_valid),
      .is_moving(1'b1),
      .push     (&taken),
      .expected (expected),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (laws)
  );

  // All three are taken together or none is.
  assign broken = laws | {2'b0, is_reset_q && !rst && taken != '0 && !(&taken)};

endmodule

`default_nettype wire
