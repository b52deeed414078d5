// Line buffer: turns an image stream (row, column, channel) into the windows of a convolution or
// pooling, one window per output pixel, each streamed by kernel row, kernel column, channel.
// Latency 3 cycles after the last pixel of a window has come, throughput 1 beat per cycle.
`default_nettype none

module sliding_window #(
    parameter int DATA_WIDTH                  = 8,   // bits of one beat
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0 = 1,   // beats of a pixel: channels / parallelism
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1 = 4,   // columns of the image
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_2 = 4,   // rows of the image
    parameter int KERNEL_SIZE_DIM_0           = 3,   // columns of the window
    parameter int KERNEL_SIZE_DIM_1           = 3,   // rows of the window
    parameter int STRIDE_DIM_0                = 1,   // columns between windows
    parameter int STRIDE_DIM_1                = 1,   // rows between windows
    parameter int PADDING_DIM_0               = 1,   // columns added left and right, below kernel
    parameter int PADDING_DIM_1               = 1,   // rows added above and below, below kernel
    parameter logic [DATA_WIDTH-1:0] PAD      = '0   // beat that stands outside the image
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || DATA_IN_0_TENSOR_SIZE_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_1 < 1 || DATA_IN_0_TENSOR_SIZE_DIM_2 < 1) begin : g_refuse_size
    $error("sliding_window: width and sizes must be 1 or more, got %0d, %0d, %0d and %0d",
           DATA_WIDTH, DATA_IN_0_TENSOR_SIZE_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_1,
           DATA_IN_0_TENSOR_SIZE_DIM_2);
  end
  if (STRIDE_DIM_0 < 1 || STRIDE_DIM_1 < 1) begin : g_refuse_step
    $error("sliding_window: strides must be 1 or more, got %0d and %0d",
           STRIDE_DIM_0, STRIDE_DIM_1);
  end
  if (PADDING_DIM_0 < 0 || PADDING_DIM_1 < 0
      || PADDING_DIM_0 >= KERNEL_SIZE_DIM_0
      || PADDING_DIM_1 >= KERNEL_SIZE_DIM_1) begin : g_refuse_padding
    $error("sliding_window: padding must be 0 or more and below the kernel size, got %0d and %0d",
           PADDING_DIM_0, PADDING_DIM_1);
  end
  if (KERNEL_SIZE_DIM_0 > DATA_IN_0_TENSOR_SIZE_DIM_1 + 2 * PADDING_DIM_0
      || KERNEL_SIZE_DIM_1 > DATA_IN_0_TENSOR_SIZE_DIM_2 + 2 * PADDING_DIM_1) begin : g_refuse_fit
    $error("sliding_window: a window must fit the image, got %0d columns and %0d rows",
           KERNEL_SIZE_DIM_0, KERNEL_SIZE_DIM_1);
  end
`endif

  localparam int BEATS = DATA_IN_0_TENSOR_SIZE_DIM_0;
  localparam int COLUMNS = DATA_IN_0_TENSOR_SIZE_DIM_1;
  localparam int ROWS = DATA_IN_0_TENSOR_SIZE_DIM_2;
  localparam int ROW_BEATS = COLUMNS * BEATS;
  localparam int OUT_ROWS = (ROWS + 2 * PADDING_DIM_1 - KERNEL_SIZE_DIM_1) / STRIDE_DIM_1 + 1;
  localparam int OUT_COLUMNS = (COLUMNS + 2 * PADDING_DIM_0 - KERNEL_SIZE_DIM_0) / STRIDE_DIM_0 + 1;
  // Row and column of the last window; rows that the last window row leaves behind.
  localparam int LAST_TOP = (OUT_ROWS - 1) * STRIDE_DIM_1 - PADDING_DIM_1;
  localparam int LAST_LEFT = (OUT_COLUMNS - 1) * STRIDE_DIM_0 - PADDING_DIM_0;
  localparam int LAST_FREED = ROWS - (LAST_TOP > 0 ? LAST_TOP : 0);
  // Rows kept: a window's, or those freed together, and one stride more that loads meanwhile.
  localparam int NEEDED_0 = KERNEL_SIZE_DIM_1 > STRIDE_DIM_1 ? KERNEL_SIZE_DIM_1 : STRIDE_DIM_1;
  localparam int NEEDED = NEEDED_0 > LAST_FREED ? NEEDED_0 : LAST_FREED;
  localparam int LINES = NEEDED + STRIDE_DIM_1;

  localparam int SLOTS = LINES * ROW_BEATS;  // LINES is 2 or more

  localparam int SPAN = ROWS > COLUMNS ? ROWS : COLUMNS;
  // Signed positions: from -padding to the end of the last window and one stride beyond.
  localparam int POSITION_WIDTH =
      $clog2(SPAN + KERNEL_SIZE_DIM_0 + KERNEL_SIZE_DIM_1 + STRIDE_DIM_0 + STRIDE_DIM_1) + 2;
  localparam int COLUMN_WIDTH = $clog2(KERNEL_SIZE_DIM_0 + 1);
  localparam int ROW_WIDTH = $clog2(KERNEL_SIZE_DIM_1 + 1);
  localparam int CHANNEL_WIDTH = $clog2(BEATS + 1);
  localparam int LEVEL_WIDTH = $clog2(SLOTS + 1);
  localparam int PLACE_WIDTH = $clog2(SLOTS);
  // Beats from the first one kept: before it and behind the last one in the padding.
  localparam int OFFSET_WIDTH =
      $clog2(SLOTS + (KERNEL_SIZE_DIM_1 + 1) * ROW_BEATS + KERNEL_SIZE_DIM_0 * BEATS) + 2;
  localparam int FIRST_OFFSET = -(PADDING_DIM_1 * ROW_BEATS + PADDING_DIM_0 * BEATS);
  localparam int FIRST_PLACE = (FIRST_OFFSET % SLOTS + SLOTS) % SLOTS;
  // Rows that are freed where a window row begins above the image and the next one does not.
  localparam int CROSSED = (STRIDE_DIM_1 - PADDING_DIM_1 % STRIDE_DIM_1) % STRIDE_DIM_1;

  typedef logic [PLACE_WIDTH-1:0] place_t;
  typedef logic signed [OFFSET_WIDTH-1:0] offset_t;
  typedef logic signed [POSITION_WIDTH-1:0] position_t;

  // A place `step` further in the ring of slots; both sums at once, so that none waits.
  function automatic place_t further(input place_t place, input int step);
    place_t ahead;
    logic [PLACE_WIDTH:0] round;  // negative where the end is not reached
    ahead = place + PLACE_WIDTH'(step);
    round = (PLACE_WIDTH + 1)'(place) + (PLACE_WIDTH + 1)'(step - SLOTS);
    further = round[PLACE_WIDTH] ? ahead : round[PLACE_WIDTH-1:0];
  endfunction

  // Beats that are freed with the last window of the row that begins at `at`.
  function automatic logic [LEVEL_WIDTH-1:0] freed_at(input position_t at);
    freed_at = LEVEL_WIDTH'(STRIDE_DIM_1 * ROW_BEATS);
    if (at < 0) freed_at = '0;
    if (at < 0 && at + POSITION_WIDTH'(STRIDE_DIM_1) >= 0) begin
      freed_at = LEVEL_WIDTH'(CROSSED * ROW_BEATS);
    end
    if (at == POSITION_WIDTH'(LAST_TOP)) freed_at = LEVEL_WIDTH'(LAST_FREED * ROW_BEATS);
  endfunction

  (* no_rw_check *)  // what is read has been written before, and its slot is not free
  logic [DATA_WIDTH-1:0] lines_q[SLOTS];

  // Write side: `level_q` beats are kept.
  place_t write_q;
  logic [LEVEL_WIDTH-1:0] level_q, level_more, level_less, freed_q;
  logic load;

  // Read side: where the next beat lies, and where the row of its window, its window, the first
  // window of its row and of its image begin; as places in the ring, and as offsets from the
  // first beat kept. All are counted: nothing is multiplied.
  place_t place_q, line_place_q, window_place_q, band_place_q, first_place_q;
  place_t line_place, window_place, next_band_place, next_first_place;
  offset_t offset_q, line_offset_q, window_offset_q, band_offset_q;
  offset_t line_offset, window_offset, next_band_offset;
  position_t row_q, column_q, top_q, left_q, next_top, next_left;
  logic [CHANNEL_WIDTH-1:0] channel_q;
  logic [COLUMN_WIDTH-1:0] kernel_column_q;
  logic [ROW_WIDTH-1:0] kernel_row_q;
  logic is_pad, is_here, enable, issue;
  logic last_channel, last_kernel_column, last_kernel_row, last_left, last_top;
  logic ends_kernel_row, ends_window, ends_window_row;

  assign data_in_0_ready = level_q != LEVEL_WIDTH'(SLOTS);
  assign load            = data_in_0_valid && data_in_0_ready;

  assign last_channel       = channel_q == CHANNEL_WIDTH'(BEATS - 1);
  assign last_kernel_column = kernel_column_q == COLUMN_WIDTH'(KERNEL_SIZE_DIM_0 - 1);
  assign last_kernel_row    = kernel_row_q == ROW_WIDTH'(KERNEL_SIZE_DIM_1 - 1);
  assign last_left          = left_q == POSITION_WIDTH'(LAST_LEFT);
  assign last_top           = top_q == POSITION_WIDTH'(LAST_TOP);
  assign ends_kernel_row    = last_channel && last_kernel_column;
  assign ends_window        = ends_kernel_row && last_kernel_row;
  assign ends_window_row    = ends_window && last_left;

  assign is_pad = row_q < 0 || row_q >= POSITION_WIDTH'(ROWS) || column_q < 0
      || column_q >= POSITION_WIDTH'(COLUMNS);

  // The rows that the next row of windows does not use are freed with the last beat of this one,
  // which waits until all of them have come. Padding waits until the image has begun.
  assign is_here = (is_pad ? level_q != '0 : offset_t'(level_q) > offset_q)
      && !(ends_window_row && level_q < freed_q);
  assign issue = is_here && enable;

  assign next_left = last_left ? -POSITION_WIDTH'(PADDING_DIM_0)
      : left_q + POSITION_WIDTH'(STRIDE_DIM_0);
  assign next_top = last_top ? -POSITION_WIDTH'(PADDING_DIM_1)
      : top_q + POSITION_WIDTH'(STRIDE_DIM_1);
  // Where the next row of a window begins, which may be that of another window, and where the next
  // window begins, which may be in another row.
  assign line_place    = last_kernel_row ? window_place : further(line_place_q, ROW_BEATS);
  assign line_offset   = last_kernel_row ? window_offset
      : line_offset_q + OFFSET_WIDTH'(ROW_BEATS);
  assign window_place  = last_left ? next_band_place
      : further(window_place_q, STRIDE_DIM_0 * BEATS % SLOTS);
  assign window_offset = last_left ? next_band_offset
      : window_offset_q + OFFSET_WIDTH'(STRIDE_DIM_0 * BEATS);
  assign next_first_place = further(first_place_q, ROWS * ROW_BEATS % SLOTS);
  assign next_band_place  = last_top ? next_first_place
      : further(band_place_q, STRIDE_DIM_1 * ROW_BEATS);
  assign next_band_offset = last_top ? OFFSET_WIDTH'(FIRST_OFFSET)
      : next_top < 0 ? band_offset_q + OFFSET_WIDTH'(STRIDE_DIM_1 * ROW_BEATS)
      : -OFFSET_WIDTH'(PADDING_DIM_0 * BEATS);

  assign level_more = level_q + LEVEL_WIDTH'(load);
  assign level_less = level_q + LEVEL_WIDTH'(load) - freed_q;

  always_ff @(posedge clk) begin
    if (load) begin
      lines_q[write_q] <= data_in_0;
      write_q          <= write_q == PLACE_WIDTH'(SLOTS - 1) ? '0 : write_q + 1'b1;
    end
    level_q <= issue && ends_window_row ? level_less : level_more;
    // `issue` comes late in a cycle: it only enables, and what comes next is chosen without it.
    if (issue) begin
      channel_q <= last_channel ? '0 : channel_q + 1'b1;
      place_q   <= ends_kernel_row ? line_place : further(place_q, 1);
      offset_q  <= ends_kernel_row ? line_offset : offset_q + 1'b1;
    end
    if (issue && last_channel) begin
      kernel_column_q <= last_kernel_column ? '0 : kernel_column_q + 1'b1;
      column_q        <= !last_kernel_column ? column_q + 1'b1
          : last_kernel_row ? next_left : left_q;
    end
    if (issue && ends_kernel_row) begin
      kernel_row_q  <= last_kernel_row ? '0 : kernel_row_q + 1'b1;
      row_q         <= !last_kernel_row ? row_q + 1'b1 : last_left ? next_top : top_q;
      line_place_q  <= line_place;
      line_offset_q <= line_offset;
    end
    if (issue && ends_window) begin
      left_q          <= next_left;
      window_place_q  <= window_place;
      window_offset_q <= window_offset;
    end
    if (issue && ends_window_row) begin
      top_q         <= next_top;
      freed_q       <= freed_at(next_top);
      band_place_q  <= next_band_place;
      band_offset_q <= next_band_offset;
      if (last_top) first_place_q <= next_first_place;
    end
    if (rst) begin
      write_q         <= '0;
      level_q         <= '0;
      freed_q         <= freed_at(-POSITION_WIDTH'(PADDING_DIM_1));
      channel_q       <= '0;
      kernel_column_q <= '0;
      kernel_row_q    <= '0;
      row_q           <= -POSITION_WIDTH'(PADDING_DIM_1);
      top_q           <= -POSITION_WIDTH'(PADDING_DIM_1);
      column_q        <= -POSITION_WIDTH'(PADDING_DIM_0);
      left_q          <= -POSITION_WIDTH'(PADDING_DIM_0);
      place_q         <= PLACE_WIDTH'(FIRST_PLACE);
      line_place_q    <= PLACE_WIDTH'(FIRST_PLACE);
      window_place_q  <= PLACE_WIDTH'(FIRST_PLACE);
      band_place_q    <= PLACE_WIDTH'(FIRST_PLACE);
      first_place_q   <= PLACE_WIDTH'(FIRST_PLACE);
      offset_q        <= OFFSET_WIDTH'(FIRST_OFFSET);
      line_offset_q   <= OFFSET_WIDTH'(FIRST_OFFSET);
      window_offset_q <= OFFSET_WIDTH'(FIRST_OFFSET);
      band_offset_q   <= OFFSET_WIDTH'(FIRST_OFFSET);
    end
  end

  // A register behind the memory, which gives its word late in a cycle.
  logic [DATA_WIDTH-1:0] read_q, beat_q;
  logic read_valid_q, read_pad_q, beat_valid_q;

  always_ff @(posedge clk) begin
    if (enable) begin
      read_q       <= lines_q[place_q];
      read_pad_q   <= is_pad;
      read_valid_q <= issue;
      beat_q       <= read_pad_q ? PAD : read_q;
      beat_valid_q <= read_valid_q;
    end
    if (rst) begin
      read_valid_q <= 1'b0;
      beat_valid_q <= 1'b0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(DATA_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (beat_q),
      .data_in_0_valid (beat_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
