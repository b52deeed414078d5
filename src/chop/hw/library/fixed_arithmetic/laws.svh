// A sum, difference or product, exactly and then cast. Both operands are taken in the same cycle.
logic lawful_0, lawful_1;
logic [2:0] laws;
logic [OUT_WIDTH-1:0] expected;
wire logic is_lawful = lawful_0 && lawful_1;
wire logic is_fed = data_in_0_valid && data_in_1_valid;
wire logic is_taken_1 = data_in_1_valid && data_in_1_ready;

// In steps of 2**-(IN_FRAC + IN_1_FRAC + ALPHA_FRAC): both terms, and the product.
logic signed [23:0] a, b, scaled_a, scaled_b, exact;
assign a = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));
assign b = 24'($signed({IN_1_SIGNED && data_in_1[IN_1_WIDTH-1], data_in_1}));
assign scaled_a = a * 24'(2 ** (IN_1_FRAC + ALPHA_FRAC));
assign scaled_b = b * 24'(ALPHA * 2 ** IN_FRAC);
assign exact = OPERATION == 0 ? scaled_a + scaled_b : OPERATION == 1 ? scaled_a - scaled_b : a * b;
assign broken = laws | 3'((data_in_0_valid && data_in_0_ready) != is_taken_1 && is_lawful);

spec_cast #(.IN_FRAC(IN_FRAC + IN_1_FRAC + ALPHA_FRAC), `OUT_FORMAT) u_spec (
    .x(exact), .y(expected)
);
lawful_source #(.WIDTH($bits(data_in_0))) u_source_0 (
    .*, .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready), .is_lawful(lawful_0)
);
lawful_source #(.WIDTH($bits(data_in_1))) u_source_1 (
    .*, .data(data_in_1), .valid(data_in_1_valid), .ready(data_in_1_ready), .is_lawful(lawful_1)
);
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (.*, .broken(laws));
