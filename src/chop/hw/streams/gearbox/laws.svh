// Elements leave in their order, OUT_LANES at a time.
localparam int SLOTS = 2 * IN_LANES + OUT_LANES;
localparam int GAP = (OUT_LANES + IN_LANES - 1) / IN_LANES;
stream_laws #(.WIDTH(IN_WIDTH), .PUSH(IN_LANES), .POP(OUT_LANES), .SLOTS(SLOTS), .GAP(GAP)) u_laws (
    .*
);
