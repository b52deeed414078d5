// The row of each number, beat by beat; a number past the last row has the last row.
logic [IN_WIDTH-1:0] tensor;
wire logic [31:0] row = 32'(tensor) >= ROWS ? ROWS - 1 : 32'(tensor);
wire logic [OUT_WIDTH-1:0] due = TABLE[(row*OUT_SIZE+32'(place))*OUT_WIDTH+:OUT_WIDTH];

tensor_laws #(
    .WIDTH(IN_WIDTH), .IN_BEATS(1), .OUT_BEATS(OUT_SIZE), .BEAT(OUT_WIDTH), .SLOTS(5),
    .LATENCY(3), .GAP(4)
) u_laws (
    .*
);
