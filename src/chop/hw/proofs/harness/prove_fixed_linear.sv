// `fixed_linear`: weight * x + bias, exactly and then cast, for weights and a bias of any value that
// stay as they are from one reset to the next; their streams may stall.
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
    parameter int W_WIDTH = 2,
    parameter int W_FRAC = 1,
    parameter bit W_SIGNED = 1'b1,
    parameter bit HAS_BIAS = 1'b1,
    parameter int B_WIDTH = 2,
    parameter int B_FRAC = 1,
    parameter bit B_SIGNED = 1'b1,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN_LANES*X_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [OUT*IN*W_WIDTH-1:0] any_weight,
    input  wire logic [OUT*B_WIDTH-1:0] any_bias,
    input  wire logic weight_valid,
    input  wire logic bias_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  localparam int IN_FOLDS = IN / IN_LANES;
  localparam int OUT_FOLDS = OUT / OUT_LANES;

  logic data_in_0_ready, weight_ready, bias_ready, data_out_0_valid, weight_lawful, bias_lawful;
  logic [OUT_LANES*OUT_WIDTH-1:0] data_out_0;
  logic [OUT_LANES*IN_LANES*W_WIDTH-1:0] weight;
  logic [OUT_LANES*B_WIDTH-1:0] bias;

  // The streams of weights and biases: folds in turn.
  logic [OUT*IN*W_WIDTH-1:0] weight_q;
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
    for (genvar lane = 0; lane < IN_LANES; lane++) begin : g_lane
      assign weight[(row*IN_LANES+lane)*W_WIDTH+:W_WIDTH] =
          weight_q[((out_fold_q*OUT_LANES+row)*IN+in_fold_q*IN_LANES+lane)*W_WIDTH+:W_WIDTH];
    end
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
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (IN),
      .DATA_IN_0_PARALLELISM_DIM_0 (IN_LANES),
      .WEIGHT_PRECISION_0          (W_WIDTH),
      .WEIGHT_PRECISION_1          (W_FRAC),
      .WEIGHT_IS_SIGNED            (W_SIGNED),
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
  logic [IN*X_WIDTH-1:0] vector_q, vector;
  logic [7:0] place_q;
  logic [IN*X_WIDTH-1:0] head;  // the oldest vector of which results are due
  logic [OUT*OUT_WIDTH-1:0] result;
  logic [7:0] result_fold_q;
  logic taken;

  assign taken = data_in_0_valid && data_in_0_ready;

  always_comb begin
    vector = vector_q;
    vector[place_q*IN_LANES*X_WIDTH+:IN_LANES*X_WIDTH] = data_in_0;
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
    logic [B_WIDTH-1:0] b_code;
    // In steps of 2**-(X_FRAC + W_FRAC + B_FRAC).
    always_comb begin
      b_code = bias_q[row*B_WIDTH+:B_WIDTH];
      b = B_SIGNED ? 24'($signed(b_code)) : $signed(24'(b_code));
      sum = HAS_BIAS ? b * 24'(2 ** (X_FRAC + W_FRAC)) : '0;
      for (int k = 0; k < IN; k++) begin
        x_code = head[k*X_WIDTH+:X_WIDTH];
        w_code = weight_q[(row*IN+k)*W_WIDTH+:W_WIDTH];
        x = X_SIGNED ? 24'($signed(x_code)) : $signed(24'(x_code));
        w = W_SIGNED ? 24'($signed(w_code)) : $signed(24'(w_code));
        sum = sum + x * w * 24'(2 ** B_FRAC);
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

  stream_laws #(.WIDTH(IN * X_WIDTH), .BEAT(OUT_LANES * OUT_WIDTH), .SLOTS(SLOTS), .LATENCY(BOUND), .GAP(BOUND + 1)) u_laws (
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
