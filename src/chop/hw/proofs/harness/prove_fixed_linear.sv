// `fixed_linear`: weight * x + bias, exactly and then cast, for weights and a bias of any value that
// stay as they are from one reset to the next; their streams may stall. Operands with exponents are
// MXINT: each beat has its own exponent.
`default_nettype none

module prove_fixed_linear #(
    parameter int SLOTS = 6,
    parameter int BOUND = 10,
    parameter int IN = 2,
    parameter int OUT = 2,
    parameter int IN_LANES = 1,
    parameter int OUT_LANES = 1,
    parameter int X_WIDTH = 2,
    parameter int X_FRAC = 1,
    parameter bit X_SIGNED = 1'b1,
    parameter int X_EXPONENT = 0,
    parameter int W_WIDTH = 2,
    parameter int W_FRAC = 1,
    parameter bit W_SIGNED = 1'b1,
    parameter int W_EXPONENT = 0,
    parameter bit HAS_BIAS = 1'b1,
    parameter int B_WIDTH = 2,
    parameter int B_FRAC = 1,
    parameter bit B_SIGNED = 1'b1,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0,
    // Bits of a beat of data_in_0, and of the weights of one output; input folds.
    parameter int X_BEAT = IN_LANES * X_WIDTH + X_EXPONENT,
    parameter int W_BEAT = IN_LANES * W_WIDTH + W_EXPONENT,
    parameter int IN_FOLDS = IN / IN_LANES
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [X_BEAT-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [OUT*IN_FOLDS*W_BEAT-1:0] any_weight,
    input  wire logic [OUT*B_WIDTH-1:0] any_bias,
    input  wire logic weight_valid,
    input  wire logic bias_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  localparam int OUT_FOLDS = OUT / OUT_LANES;

  logic data_in_0_ready, weight_ready, bias_ready, data_out_0_valid, weight_lawful, bias_lawful;
  logic [OUT_LANES*OUT_WIDTH-1:0] data_out_0;
  logic [OUT_LANES*W_BEAT-1:0] weight;
  logic [OUT_LANES*B_WIDTH-1:0] bias;

  // The streams of weights and biases: folds in turn.
  logic [OUT*IN_FOLDS*W_BEAT-1:0] weight_q;
  logic [OUT*B_WIDTH-1:0] bias_q;
  logic [7:0] in_fold_q, out_fold_q, bias_fold_q;

  always_ff @(posedge clk) begin
    if (weight_valid && weight_ready) begin
      in_fold_q <= 32'(in_fold_q) == IN_FOLDS - 1 ? '0 : in_fold_q + 1'b1;
      if (32'(in_fold_q) == IN_FOLDS - 1) out_fold_q <= 32'(out_fold_q) == OUT_FOLDS - 1 ? '0 : out_fold_q + 1'b1;
    end
    if (bias_valid && bias_ready) bias_fold_q <= 32'(bias_fold_q) == OUT_FOLDS - 1 ? '0 : bias_fold_q + 1'b1;
    if (rst) begin
      weight_q    <= any_weight;
      bias_q      <= any_bias;
      in_fold_q   <= '0;
      out_fold_q  <= '0;
      bias_fold_q <= '0;
    end
  end

  for (genvar row = 0; row < OUT_LANES; row++) begin : g_row
    assign weight[row*W_BEAT+:W_BEAT] =
        weight_q[((out_fold_q*OUT_LANES+row)*IN_FOLDS+in_fold_q)*W_BEAT+:W_BEAT];
    assign bias[row*B_WIDTH+:B_WIDTH] = bias_q[(bias_fold_q*OUT_LANES+row)*B_WIDTH+:B_WIDTH];
  end

  lawful_source #(.WIDTH(1)) u_weight (
      .clk(clk), .rst(rst), .data(1'b0), .valid(weight_valid), .ready(weight_ready),
      .is_lawful(weight_lawful)
  );

  lawful_source #(.WIDTH(1)) u_bias (
      .clk(clk), .rst(rst), .data(1'b0), .valid(bias_valid), .ready(bias_ready),
      .is_lawful(bias_lawful)
  );

  fixed_linear #(
      .DATA_IN_0_PRECISION_0       (X_WIDTH),
      .DATA_IN_0_PRECISION_1       (X_FRAC),
      .DATA_IN_0_IS_SIGNED         (X_SIGNED),
      .DATA_IN_0_EXPONENT_WIDTH    (X_EXPONENT),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (IN),
      .DATA_IN_0_PARALLELISM_DIM_0 (IN_LANES),
      .WEIGHT_PRECISION_0          (W_WIDTH),
      .WEIGHT_PRECISION_1          (W_FRAC),
      .WEIGHT_IS_SIGNED            (W_SIGNED),
      .WEIGHT_EXPONENT_WIDTH       (W_EXPONENT),
      .HAS_BIAS                    (HAS_BIAS),
      .BIAS_PRECISION_0            (B_WIDTH),
      .BIAS_PRECISION_1            (B_FRAC),
      .BIAS_IS_SIGNED              (B_SIGNED),
      .DATA_OUT_0_PRECISION_0      (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1      (OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED        (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING         (ROUNDING),
      .DATA_OUT_0_OVERFLOW         (OVERFLOW),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(OUT),
      .DATA_OUT_0_PARALLELISM_DIM_0(OUT_LANES),
      .ACC_WIDTH                   (10)
  ) dut (
      .*
  );

  // A whole vector: what has come of it, and the beat that comes.
  logic [IN_FOLDS*X_BEAT-1:0] vector_q, vector;
  logic [7:0] place_q;
  logic [IN_FOLDS*X_BEAT-1:0] head;  // the oldest vector of which results are due
  logic [OUT*OUT_WIDTH-1:0] result;
  logic [7:0] result_fold_q;
  logic taken;

  assign taken = data_in_0_valid && data_in_0_ready;

  always_comb begin
    vector = vector_q;
    vector[place_q*X_BEAT+:X_BEAT] = data_in_0;
  end

  always_ff @(posedge clk) begin
    if (taken) begin
      vector_q <= vector;
      place_q  <= 32'(place_q) == IN_FOLDS - 1 ? '0 : place_q + 1'b1;
    end
    if (data_out_0_valid && data_out_0_ready) result_fold_q <= 32'(result_fold_q) == OUT_FOLDS - 1 ? '0 : result_fold_q + 1'b1;
    if (rst) begin
      place_q       <= '0;
      result_fold_q <= '0;
    end
  end

  for (genvar row = 0; row < OUT; row++) begin : g_expected
    logic signed [23:0] sum, x, w, b;
    logic [X_WIDTH-1:0] x_code;
    logic [W_WIDTH-1:0] w_code;
    logic [X_BEAT-1:0] x_beat;
    logic [W_BEAT-1:0] w_beat;
    logic [7:0] shift;
    logic [B_WIDTH-1:0] b_code;
    // In steps of 2**-(X_FRAC + W_FRAC + B_FRAC).
    always_comb begin
      b_code = bias_q[row*B_WIDTH+:B_WIDTH];
      b = B_SIGNED ? 24'($signed(b_code)) : $signed(24'(b_code));
      sum = HAS_BIAS ? b * 24'(2 ** (X_FRAC + W_FRAC)) : '0;
      for (int k = 0; k < IN; k++) begin
        x_beat = head[k/IN_LANES*X_BEAT+:X_BEAT];
        w_beat = weight_q[(row*IN_FOLDS+k/IN_LANES)*W_BEAT+:W_BEAT];
        x_code = x_beat[k%IN_LANES*X_WIDTH+:X_WIDTH];
        w_code = w_beat[k%IN_LANES*W_WIDTH+:W_WIDTH];
        shift = 8'(x_beat >> (IN_LANES * X_WIDTH)) + 8'(w_beat >> (IN_LANES * W_WIDTH));
        x = X_SIGNED ? 24'($signed(x_code)) : $signed(24'(x_code));
        w = W_SIGNED ? 24'($signed(w_code)) : $signed(24'(w_code));
        sum = sum + (x * w * 24'(2 ** B_FRAC) <<< shift);
      end
    end
    spec_cast #(
        .IN_FRAC(X_FRAC + W_FRAC + B_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC),
        .OUT_SIGNED(OUT_SIGNED), .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
    ) u_spec (
        .x(sum),
        .y(result[row*OUT_WIDTH+:OUT_WIDTH])
    );
  end

  stream_laws #(.WIDTH(IN_FOLDS * X_BEAT), .BEAT(OUT_LANES * OUT_WIDTH), .SLOTS(SLOTS), .LATENCY(BOUND), .GAP(BOUND + 1)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(weight_lawful && bias_lawful),
      .is_fed   (data_in_0_valid && weight_valid && (bias_valid || !HAS_BIAS)),
      .is_moving(weight_valid && (bias_valid || !HAS_BIAS)),
      .push     (taken && 32'(place_q) == IN_FOLDS - 1),
      .expected (vector),
      .head     (head),
      .due      (result[result_fold_q*OUT_LANES*OUT_WIDTH+:OUT_LANES*OUT_WIDTH]),
      .ends     (32'(result_fold_q) == OUT_FOLDS - 1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
