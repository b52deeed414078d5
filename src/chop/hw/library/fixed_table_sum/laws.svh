// weight @ x + bias, exactly and then cast, against the weights that the network was made from.
logic [IN_SIZE*IN_WIDTH-1:0] head;
logic [OUT_SIZE*OUT_WIDTH-1:0] due;

spec_product #(
    .IN(IN_SIZE), .OUT(OUT_SIZE), .X_WIDTH(IN_WIDTH), .X_SIGNED(IN_SIGNED), .W_WIDTH(4),
    .WEIGHT(WEIGHT), .BIAS(BIAS), .FRAC(ACC_FRAC), `OUT_FORMAT
) u_spec (
    .x(head), .y(due)
);
stream_laws #(
    .WIDTH(IN_SIZE * IN_WIDTH), .BEAT(OUT_SIZE * OUT_WIDTH), .SLOTS(STAGES + 3),
    .LATENCY(STAGES + 1), .GAP(STAGES + 2)
) u_laws (
    .*
);
