// x + 3 clipped to 0 … 6, times x for a swish, over six. In steps of 2**-IN_FRAC; the swish in their
// squares.
localparam logic signed [23:0] ONE = 24'(2 ** IN_FRAC);
logic signed [23:0] clipped, exact;
logic [OUT_WIDTH-1:0] expected;
wire logic signed [23:0] x = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));

assign clipped = x < -3 * ONE ? '0 : x > 3 * ONE ? 6 * ONE : x + 3 * ONE;
assign exact   = IS_SWISH ? x * clipped : clipped;

spec_cast #(.IN_FRAC((IS_SWISH ? 2 : 1) * IN_FRAC), .DIVISOR(6), .WORK(12), `OUT_FORMAT) u_spec (
    .x(12'(exact)), .y(expected)
);
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (.*);
