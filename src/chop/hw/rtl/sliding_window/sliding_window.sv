// Line buffer: turns an image stream (row, column, channel) into the windows of a convolution or
// pooling, one window per output pixel, each streamed by kernel row, kernel column, channel.
// Latency 2 cycles after the last pixel of a window has come, throughput 1 beat per cycle.
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

  localparam int SPAN_0 = ROWS > COLUMNS ? ROWS : COLUMNS;
  localparam int SPAN_1 = LINES > SPAN_0 ? LINES : SPAN_0;
  // Signed positions: from -padding to the end of the last window and one stride beyond.
  localparam int POSITION_WIDTH =
      $clog2(SPAN_1 + KERNEL_SIZE_DIM_0 + KERNEL_SIZE_DIM_1 + STRIDE_DIM_0 + STRIDE_DIM_1) + 2;
  localparam int LINE_WIDTH = $clog2(LINES + 1);
  localparam int BEAT_WIDTH = $clog2(ROW_BEATS + 1);
  localparam int CHANNEL_WIDTH = $clog2(BEATS + 1);
  localparam int ADDRESS_WIDTH = $clog2(LINES * ROW_BEATS);  // LINES is 2 or more

  logic [DATA_WIDTH-1:0] lines_q[LINES*ROW_BEATS];

  // Write side: beat `beat_q` of line `write_line_q`; `held_q` complete rows are kept.
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [LINE_WIDTH-1:0] write_line_q, base_line_q, held_q, freed;
  logic load, row_done;

  // Read side: window at (top, left), row, column and beat inside it.
  logic signed [POSITION_WIDTH-1:0] top_q, left_q, kernel_row_q, kernel_column_q;
  logic signed [POSITION_WIDTH-1:0] row, column, first_row, line_offset, line, next_first_row;
  logic [CHANNEL_WIDTH-1:0] channel_q;
  logic [ADDRESS_WIDTH-1:0] address;
  logic is_pad, is_here, enable, issue;
  logic last_channel, last_kernel_column, last_kernel_row, last_left, last_top;
  logic ends_kernel_row, ends_window, ends_window_row;

  assign data_in_0_ready = held_q != LINE_WIDTH'(LINES);
  assign load            = data_in_0_valid && data_in_0_ready;
  assign row_done        = load && beat_q == BEAT_WIDTH'(ROW_BEATS - 1);

  assign last_channel       = channel_q == CHANNEL_WIDTH'(BEATS - 1);
  assign last_kernel_column = kernel_column_q == POSITION_WIDTH'(KERNEL_SIZE_DIM_0 - 1);
  assign last_kernel_row    = kernel_row_q == POSITION_WIDTH'(KERNEL_SIZE_DIM_1 - 1);
  assign last_left          = left_q == POSITION_WIDTH'(LAST_LEFT);
  assign last_top           = top_q == POSITION_WIDTH'(LAST_TOP);
  assign ends_kernel_row    = last_channel && last_kernel_column;
  assign ends_window        = ends_kernel_row && last_kernel_row;
  assign ends_window_row    = ends_window && last_left;

  assign row       = top_q + kernel_row_q;
  assign column    = left_q + kernel_column_q;
  assign first_row = top_q < 0 ? '0 : top_q;
  assign is_pad    = row < 0 || row >= POSITION_WIDTH'(ROWS) || column < 0
      || column >= POSITION_WIDTH'(COLUMNS);

  // The rows that the next row of windows does not use are freed with the last beat of this one,
  // which waits until all of them have come.
  assign next_first_row = top_q + POSITION_WIDTH'(STRIDE_DIM_1);
  assign freed = last_top ? LINE_WIDTH'(LAST_FREED)
      : next_first_row < 0 ? '0 : LINE_WIDTH'(next_first_row - first_row);

  assign line_offset = row - first_row;
  assign line = line_offset + POSITION_WIDTH'(base_line_q) >= POSITION_WIDTH'(LINES)
      ? line_offset + POSITION_WIDTH'(base_line_q) - POSITION_WIDTH'(LINES)
      : line_offset + POSITION_WIDTH'(base_line_q);
  assign address = ADDRESS_WIDTH'(32'(line) * ROW_BEATS + 32'(column) * BEATS + 32'(channel_q));

  always_comb begin
    is_here = line_offset < POSITION_WIDTH'(held_q);
    if (line_offset == POSITION_WIDTH'(held_q)) begin  // the row that is coming in
      is_here = 32'(column) * BEATS + 32'(channel_q) < 32'(beat_q);
    end
    if (is_pad) is_here = held_q != '0 || beat_q != '0;  // not before the image has begun
    if (ends_window_row && held_q < freed) is_here = 1'b0;
  end
  assign issue = is_here && enable;

  always_ff @(posedge clk) begin
    if (load) begin
      lines_q[ADDRESS_WIDTH'(32'(write_line_q)*ROW_BEATS+32'(beat_q))] <= data_in_0;
      beat_q <= row_done ? '0 : beat_q + 1'b1;
    end
    if (row_done) begin
      write_line_q <= write_line_q == LINE_WIDTH'(LINES - 1) ? '0 : write_line_q + 1'b1;
    end
    if (issue) begin
      channel_q <= last_channel ? '0 : channel_q + 1'b1;
      if (last_channel) kernel_column_q <= last_kernel_column ? '0 : kernel_column_q + 1'b1;
      if (ends_kernel_row) kernel_row_q <= last_kernel_row ? '0 : kernel_row_q + 1'b1;
      if (ends_window) begin
        left_q <= last_left ? -POSITION_WIDTH'(PADDING_DIM_0)
            : left_q + POSITION_WIDTH'(STRIDE_DIM_0);
      end
      if (ends_window_row) begin
        top_q <= last_top ? -POSITION_WIDTH'(PADDING_DIM_1) : next_first_row;
        base_line_q <= 32'(base_line_q) + 32'(freed) >= LINES
            ? LINE_WIDTH'(32'(base_line_q) + 32'(freed) - LINES) : base_line_q + freed;
      end
    end
    held_q <= held_q + LINE_WIDTH'(row_done) - (issue && ends_window_row ? freed : '0);
    if (rst) begin
      beat_q          <= '0;
      write_line_q    <= '0;
      base_line_q     <= '0;
      held_q          <= '0;
      top_q           <= -POSITION_WIDTH'(PADDING_DIM_1);
      left_q          <= -POSITION_WIDTH'(PADDING_DIM_0);
      kernel_row_q    <= '0;
      kernel_column_q <= '0;
      channel_q       <= '0;
    end
  end

  logic [DATA_WIDTH-1:0] read_q;
  logic read_valid_q, read_pad_q;

  always_ff @(posedge clk) begin
    if (enable) begin
      read_q       <= lines_q[address];
      read_pad_q   <= is_pad;
      read_valid_q <= issue;
    end
    if (rst) read_valid_q <= 1'b0;
  end

  skid_buffer #(
      .DATA_WIDTH(DATA_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (read_pad_q ? PAD : read_q),
      .data_in_0_valid (read_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
