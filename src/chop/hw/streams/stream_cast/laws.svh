// Each number is cast in the cycle in which it is taken.
logic is_lawful;
logic [OUT_WIDTH-1:0] expected;
wire logic signed [23:0] x = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));

spec_cast #(.IN_FRAC(IN_FRAC), `OUT_FORMAT) u_spec (.x(x), .y(expected));
lawful_source #(.WIDTH(IN_WIDTH)) u_source (
    .*, .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready)
);
pass_laws #(.WIDTH(OUT_WIDTH)) u_laws (.*);
