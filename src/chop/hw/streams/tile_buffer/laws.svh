// Tiles of GROUP rows leave along the rows, or across them, REPEATS times each matrix.
localparam int LATENCY = 1;
localparam int BEATS = ROWS * ROW_BEATS;
localparam int GROUPS = ROWS / GROUP;
localparam int TILES = GROUPS * ROW_BEATS;
logic [GROUP*WIDTH-1:0] due;
logic [BEATS*WIDTH-1:0] tensor;
int tile, group, column;

always_comb begin
  tile   = 32'(place) % TILES;
  group  = GROUPS_FIRST ? tile % GROUPS : tile / ROW_BEATS;
  column = GROUPS_FIRST ? tile / GROUPS : tile % ROW_BEATS;
  for (int row = 0; row < GROUP; row++) begin
    due[row*WIDTH+:WIDTH] = tensor[((group*GROUP+row)*ROW_BEATS+column)*WIDTH+:WIDTH];
  end
end

tensor_laws #(
    .WIDTH(WIDTH), .IN_BEATS(BEATS), .OUT_BEATS(TILES * REPEATS), .BEAT(GROUP * WIDTH),
    .SLOTS(4), .LATENCY(LATENCY), .GAP(BEATS + LATENCY + 1)
) u_laws (
    .*
);
