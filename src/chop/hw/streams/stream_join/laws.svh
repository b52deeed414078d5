// A beat of each stream leaves side by side, in the cycle in which both are taken.
logic is_lawful, lawful_0, lawful_1;
assign is_lawful = lawful_0 && lawful_1;
wire logic [1:0] source_valid = {data_in_1_valid, data_in_0_valid};
wire logic [1:0] source_ready = {data_in_1_ready, data_in_0_ready};
wire logic [$bits(data_out_0)-1:0] expected = {data_in_1, data_in_0};

lawful_source #(.WIDTH($bits(data_in_0))) u_source_0 (
    .*, .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready), .is_lawful(lawful_0)
);
lawful_source #(.WIDTH($bits(data_in_1))) u_source_1 (
    .*, .data(data_in_1), .valid(data_in_1_valid), .ready(data_in_1_ready), .is_lawful(lawful_1)
);
pass_laws #(.WIDTH($bits(data_out_0)), .SOURCES(2)) u_laws (.*);
