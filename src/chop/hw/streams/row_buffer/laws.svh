// A row leaves with the scalar of its last beat. The output is a stage of a pipeline: it moves with
// the others alone.
logic [BEATS*2*WIDTH-1:0] tensor;
wire logic is_moving = enable;
wire logic [2*WIDTH-1:0] expected = {scalar_in, data_in_0};

tensor_laws #(
    .WIDTH(2 * WIDTH), .IN_BEATS(BEATS), .OUT_BEATS(BEATS), .SLOTS(3), .LATENCY(BEATS),
    .GAP(BEATS + 2)
) u_laws (
    .*, .beat(expected), .data({scalar_out, data_out_0}), .ready(enable),
    .due({tensor[(2*BEATS-1)*WIDTH+:WIDTH], tensor[place*2*WIDTH+:WIDTH]})
);
