// x, or the output code of a bound where x is beyond it: at most two numbers are inside.
logic [OUT_WIDTH-1:0] cast, expected;
wire logic signed [23:0] x = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));

spec_cast #(.IN_FRAC(IN_FRAC), `OUT_FORMAT) u_spec (.x(x), .y(cast));
assign expected = x < 24'(LOW_AT) ? OUT_WIDTH'(LOW) : x > 24'(HIGH_AT) ? OUT_WIDTH'(HIGH) : cast;
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(2)) u_laws (.*);
