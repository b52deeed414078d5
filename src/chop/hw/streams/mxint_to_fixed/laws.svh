// Each mantissa doubled as often as the exponent says, then cast. No beat has an exponent above the
// largest.
localparam int EXPONENT = DATA_IN_0_EXPONENT_WIDTH;
logic [IN_LANES*OUT_WIDTH-1:0] expected;
logic lawful_q = 1'b1;
wire logic [EXPONENT-1:0] exponent = data_in_0[IN_LANES*IN_WIDTH+:EXPONENT];
wire logic is_exponent = !data_in_0_valid || 32'(exponent) <= DATA_IN_0_TOP;
wire logic is_lawful = lawful_q && is_exponent;
always_ff @(posedge clk) lawful_q <= rst || is_lawful;

for (genvar lane = 0; lane < IN_LANES; lane++) begin : g_lane
  logic signed [23:0] x;
  logic [IN_WIDTH-1:0] code;
  assign code = data_in_0[lane*IN_WIDTH+:IN_WIDTH];
  always_comb begin
    x = 24'($signed(code));
    for (int k = 0; k < 2 ** EXPONENT; k++) if (k < 32'(exponent)) x = x + x;
  end
  spec_cast #(.IN_FRAC(IN_FRAC), `OUT_FORMAT) u_spec (
      .x(x), .y(expected[lane*OUT_WIDTH+:OUT_WIDTH])
  );
end

stream_laws #(.WIDTH(IN_LANES * OUT_WIDTH), .SLOTS(4), .LATENCY(3), .GAP(4)) u_laws (.*);
