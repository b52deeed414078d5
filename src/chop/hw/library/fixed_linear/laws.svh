// weight * x + bias, exactly and then cast. Weights and biases have any value, stay from one reset to
// the next, and their streams may stall. A beat of an operand with exponents has its own exponent.
localparam int IN_FOLDS = IN_SIZE / IN_LANES;
localparam int OUT_FOLDS = OUT_SIZE / OUT_LANES;
localparam int X_BEAT = $bits(data_in_0);
localparam int W_BEAT = WEIGHT_WIDTH;  // of one output lane
logic [OUT_LANES*W_BEAT-1:0] weight;
logic [OUT_LANES*B_WIDTH-1:0] bias;
logic [OUT_SIZE*IN_FOLDS*W_BEAT-1:0] weights;
logic [OUT_SIZE*B_WIDTH-1:0] biases;
logic [IN_FOLDS*X_BEAT-1:0] tensor;
logic [OUT_SIZE*OUT_WIDTH-1:0] result;
logic weight_lawful, bias_lawful;
wire logic is_lawful = weight_lawful && bias_lawful;
wire logic is_moving = weight_valid && (bias_valid || !HAS_BIAS);
wire logic is_fed = data_in_0_valid && is_moving;
wire logic [OUT_LANES*OUT_WIDTH-1:0] due = result[place*OUT_LANES*OUT_WIDTH+:OUT_LANES*OUT_WIDTH];

for (genvar row = 0; row < OUT_SIZE; row++) begin : g_expected
  logic signed [23:0] sum, x, w, b;
  logic [IN_WIDTH-1:0] x_code;
  logic [W_WIDTH-1:0] w_code;
  logic [X_BEAT-1:0] x_beat;
  logic [W_BEAT-1:0] w_beat;
  logic [7:0] shift;
  logic [B_WIDTH-1:0] b_code;
  // In steps of 2**-(IN_FRAC + W_FRAC + B_FRAC).
  always_comb begin
    b_code = biases[row*B_WIDTH+:B_WIDTH];
    b = B_SIGNED ? 24'($signed(b_code)) : $signed(24'(b_code));
    sum = HAS_BIAS ? b * 24'(2 ** (IN_FRAC + W_FRAC)) : '0;
    for (int k = 0; k < IN_SIZE; k++) begin
      x_beat = tensor[k/IN_LANES*X_BEAT+:X_BEAT];
      w_beat = weights[((row/OUT_LANES*IN_FOLDS+k/IN_LANES)*OUT_LANES+row%OUT_LANES)*W_BEAT+:W_BEAT];
      x_code = x_beat[k%IN_LANES*IN_WIDTH+:IN_WIDTH];
      w_code = w_beat[k%IN_LANES*W_WIDTH+:W_WIDTH];
      shift = 8'(x_beat >> (IN_LANES * IN_WIDTH)) + 8'(w_beat >> (IN_LANES * W_WIDTH));
      x = IN_SIGNED ? 24'($signed(x_code)) : $signed(24'(x_code));
      w = W_SIGNED ? 24'($signed(w_code)) : $signed(24'(w_code));
      sum = sum + (x * w * 24'(2 ** B_FRAC) <<< shift);
    end
  end
  spec_cast #(.IN_FRAC(IN_FRAC + W_FRAC + B_FRAC), `OUT_FORMAT) u_spec (
      .x(sum), .y(result[row*OUT_WIDTH+:OUT_WIDTH])
  );
end

repeating_source #(.WIDTH(OUT_LANES * W_BEAT), .BEATS(OUT_FOLDS * IN_FOLDS)) u_weight (
    .clk, .rst, .valid(weight_valid), .ready(weight_ready), .data(weight), .beats(weights),
    .is_lawful(weight_lawful)
);
repeating_source #(.WIDTH(OUT_LANES * B_WIDTH), .BEATS(OUT_FOLDS)) u_bias (
    .clk, .rst, .valid(bias_valid), .ready(bias_ready), .data(bias), .beats(biases),
    .is_lawful(bias_lawful)
);
tensor_laws #(
    .WIDTH(X_BEAT), .IN_BEATS(IN_FOLDS), .OUT_BEATS(OUT_FOLDS), .BEAT(OUT_LANES * OUT_WIDTH),
    .SLOTS(SLOTS), .LATENCY(LATENCY), .GAP(LATENCY + 1)
) u_laws (
    .*
);
