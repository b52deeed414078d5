// The larger of x and 0.
logic is_lawful;
wire logic signed [23:0] x = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));
wire logic [IN_WIDTH-1:0] expected = x > 0 ? IN_WIDTH'(x) : '0;

lawful_source #(.WIDTH(IN_WIDTH)) u_source (
    .*, .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready)
);
pass_laws #(.WIDTH(IN_WIDTH)) u_laws (.*);
