// Each window leaves pixel by pixel; pixels outside the image are ones.
localparam int IMAGES = 4;
localparam int GAP = 8;
localparam int PIXELS = ROWS * COLUMNS;
localparam int OUT_COLUMNS = (COLUMNS + 2 * PAD_COLUMNS - KERNEL_COLUMNS) / STRIDE_COLUMNS + 1;
localparam int OUT_ROWS = (ROWS + 2 * PAD_ROWS - KERNEL_ROWS) / STRIDE_ROWS + 1;
localparam int AREA = KERNEL_ROWS * KERNEL_COLUMNS;
localparam int GIVEN = OUT_ROWS * OUT_COLUMNS * AREA;

// Windows leave before their image is whole: what is due is a function of the pixels taken so far.
// All of them are kept, the oldest image first, and each beat given must have had its pixel.
logic [IMAGES*PIXELS*WIDTH-1:0] pixels_q, pixels_left;
logic [7:0] kept_q, kept_left, place_q;
logic taken, given, is_last, is_inside, is_reset_q = 1'b0;
logic was_stalled_q, is_live;
logic [WIDTH-1:0] was_q, due;
int window, pixel, row, column;
logic [7:0] idle_q;

assign taken   = data_in_0_valid && data_in_0_ready;
assign given   = data_out_0_valid && data_out_0_ready;
assign is_last = 32'(place_q) == GIVEN - 1;

always_comb begin
  window    = 32'(place_q) / AREA;
  pixel     = 32'(place_q) % AREA;
  row       = window / OUT_COLUMNS * STRIDE_ROWS - PAD_ROWS + pixel / KERNEL_COLUMNS;
  column    = window % OUT_COLUMNS * STRIDE_COLUMNS - PAD_COLUMNS + pixel % KERNEL_COLUMNS;
  is_inside = row >= 0 && row < ROWS && column >= 0 && column < COLUMNS;
  due       = is_inside ? pixels_q[(row*COLUMNS+column)*WIDTH+:WIDTH] : '1;
  pixels_left = given && is_last ? pixels_q >> (PIXELS * WIDTH) : pixels_q;
  kept_left   = given && is_last ? kept_q - 8'(PIXELS) : kept_q;
end

always_ff @(posedge clk) begin
  is_reset_q    <= is_reset_q || rst;
  was_stalled_q <= data_out_0_valid && !data_out_0_ready && !rst;
  was_q         <= data_out_0;
  pixels_q      <= pixels_left;
  if (taken) pixels_q[kept_left*WIDTH+:WIDTH] <= data_in_0;
  kept_q        <= rst ? '0 : kept_left + 8'(taken);
  if (given) place_q <= is_last ? '0 : place_q + 1'b1;
  if (rst) place_q <= '0;
  idle_q <= rst || given ? '0 : idle_q + 8'(data_out_0_ready && data_in_0_valid);
end

assign is_live = is_reset_q && !rst;
assign broken[0] = is_live && (32'(kept_q) > IMAGES * PIXELS - 1
    || data_out_0_valid && (data_out_0 != due || kept_q == '0
        || is_inside && 32'(kept_q) <= row * COLUMNS + column
        || is_last && 32'(kept_q) < PIXELS));
assign broken[1] = is_live && was_stalled_q && !(data_out_0_valid && data_out_0 == was_q);
assign broken[2] = is_live && 32'(idle_q) > GAP;
