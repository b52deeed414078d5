// Exact sums of products. The tag moves beside them, and the pipeline may be held at any time.
localparam int OPERANDS = $bits(data_in_0) + $bits(weight);
logic [OPERANDS-1:0] head;
logic [OUTPUTS*SUM_WIDTH-1:0] due;
wire logic is_moving = enable;
wire logic [OPERANDS-1:0] expected = {weight, data_in_0};

for (genvar out = 0; out < OUTPUTS; out++) begin : g_out
  logic signed [23:0] sum, x, w;
  logic [IN_WIDTH-1:0] x_code;
  logic [W_WIDTH-1:0] w_code;
  always_comb begin
    sum = '0;
    for (int lane = 0; lane < IN_LANES; lane++) begin
      x_code = head[lane*IN_WIDTH+:IN_WIDTH];
      w_code = head[IN_LANES*IN_WIDTH+(out*IN_LANES+lane)*W_WIDTH+:W_WIDTH];
      x = IN_SIGNED ? 24'($signed(x_code)) : $signed(24'(x_code));
      w = W_SIGNED ? 24'($signed(w_code)) : $signed(24'(w_code));
      sum = sum + x * w;
    end
  end
  assign due[out*SUM_WIDTH+:SUM_WIDTH] = SUM_WIDTH'(sum);
end

stream_laws #(
    .WIDTH(OPERANDS), .BEAT($bits(data_out_0)), .SLOTS(10), .LATENCY(10), .GAP(11)
) u_laws (
    .*, .is_fed(tag_in), .push(tag_in && enable), .valid(tag_out), .ready(enable)
);
