// Element k of a result is element ORDER[k] of the tensor, four bits each. The beats of the tensor
// that loads, and of two that wait, may pass before one is given.
localparam int LATENCY = 2;
logic [IN_SIZE*IN_WIDTH-1:0] tensor;
logic [OUT_SIZE*IN_WIDTH-1:0] moved;
localparam int BEAT = IN_LANES * IN_WIDTH;

for (genvar k = 0; k < OUT_SIZE; k++) begin : g_moved
  assign moved[k*IN_WIDTH+:IN_WIDTH] = tensor[ORDER[k*4+:4]*IN_WIDTH+:IN_WIDTH];
end

tensor_laws #(
    .WIDTH(BEAT), .IN_BEATS(IN_SIZE / IN_LANES), .OUT_BEATS(OUT_SIZE / IN_LANES), .SLOTS(4),
    .LATENCY(LATENCY), .GAP(IN_SIZE / IN_LANES + LATENCY + 1)
) u_laws (
    .*, .due(moved[place*BEAT+:BEAT])
);
