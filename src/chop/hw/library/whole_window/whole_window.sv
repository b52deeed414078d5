// Turns an image stream (row, column), a pixel per beat, into the windows of a convolution, each
// whole in one beat: by kernel row, then kernel column, the first in the low bits.
// Latency 2 cycles after the last pixel of a window has come; a pixel and a window per cycle, and
// after the last pixel the cycles of the padding that is left.
//
// Pixels move along one line, in which the window's places stand still. What is read to the left or
// right of the image is of another row, above or below of another image: it is masked.
`default_nettype none

module whole_window #(
    parameter int DATA_WIDTH                  = 8,  // bits of a pixel, 1 or more
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1 = 4,  // columns of the image
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_2 = 4,  // rows of the image
    parameter int KERNEL_SIZE_DIM_0           = 3,  // columns of the window
    parameter int KERNEL_SIZE_DIM_1           = 3,  // rows of the window
    parameter int STRIDE_DIM_0                = 1,  // columns between windows
    parameter int STRIDE_DIM_1                = 1,  // rows between windows
    parameter int PADDING_DIM_0               = 1,  // columns added on each side, below half a kernel
    parameter int PADDING_DIM_1               = 1   // rows added above and below, below kernel
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    output      logic [KERNEL_SIZE_DIM_0*KERNEL_SIZE_DIM_1*DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

  localparam int COLUMNS = DATA_IN_0_TENSOR_SIZE_DIM_1;
  localparam int ROWS = DATA_IN_0_TENSOR_SIZE_DIM_2;
  localparam int WIDE = KERNEL_SIZE_DIM_0;
  localparam int HIGH = KERNEL_SIZE_DIM_1;

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || COLUMNS < 1 || ROWS < 1 || STRIDE_DIM_0 < 1 || STRIDE_DIM_1 < 1)
  begin : g_refuse_size
    $error("whole_window: width, sizes and strides must be 1 or more, got %0d, %0d, %0d, %0d and %0d",
           DATA_WIDTH, COLUMNS, ROWS, STRIDE_DIM_0, STRIDE_DIM_1);
  end
  if (PADDING_DIM_0 < 0 || PADDING_DIM_1 < 0 || PADDING_DIM_1 >= HIGH
      || 2 * PADDING_DIM_0 >= WIDE + (STRIDE_DIM_1 - 1) * COLUMNS) begin : g_refuse_padding
    $error("whole_window: padding must be 0 or more and below half the kernel, got %0d and %0d",
           PADDING_DIM_0, PADDING_DIM_1);
  end
  if (WIDE > COLUMNS + 2 * PADDING_DIM_0 || HIGH > ROWS + 2 * PADDING_DIM_1) begin : g_refuse_fit
    $error("whole_window: a window must fit the image, got %0d columns and %0d rows", WIDE, HIGH);
  end
`endif

  localparam int OUT_COLUMNS = (COLUMNS + 2 * PADDING_DIM_0 - WIDE) / STRIDE_DIM_0 + 1;
  localparam int OUT_ROWS = (ROWS + 2 * PADDING_DIM_1 - HIGH) / STRIDE_DIM_1 + 1;
  localparam int PIXELS = COLUMNS * ROWS;
  // The step of the first window, from row to row, and of the last; steps are pixels, then more.
  localparam int FIRST = (HIGH - 1 - PADDING_DIM_1) * COLUMNS + WIDE - 1 - PADDING_DIM_0;
  localparam int BACK = STRIDE_DIM_1 * COLUMNS - (OUT_COLUMNS - 1) * STRIDE_DIM_0;
  localparam int LAST = FIRST + (OUT_ROWS - 1) * STRIDE_DIM_1 * COLUMNS
                        + (OUT_COLUMNS - 1) * STRIDE_DIM_0;
  localparam int STEPS = PIXELS > LAST + 1 ? PIXELS : LAST + 1;
  localparam int LINE = (HIGH - 1) * COLUMNS + WIDE;
  localparam int STEP_WIDTH = $clog2(STEPS + BACK + STRIDE_DIM_0 + 1);
  localparam int PLACE_WIDTH = $clog2(COLUMNS + ROWS + WIDE + HIGH + STRIDE_DIM_0 + STRIDE_DIM_1) + 2;

  logic enable, advance, is_pixel, is_due, valid_q;
  logic [STEP_WIDTH-1:0] step_q, due_q;
  logic signed [PLACE_WIDTH-1:0] left_q, top_q;  // the next window's first column and row
  logic is_last_column, is_last_step;
  logic [LINE*DATA_WIDTH-1:0] line_q;  // the newest pixel in the low bits
  logic [WIDE-1:0] inside_columns_q;
  logic [HIGH-1:0] inside_rows_q;
  logic [WIDE*HIGH*DATA_WIDTH-1:0] window;

  assign is_pixel        = step_q < STEP_WIDTH'(PIXELS);
  assign is_due          = step_q == due_q;
  assign is_last_step    = step_q == STEP_WIDTH'(STEPS - 1);
  assign is_last_column  = left_q == PLACE_WIDTH'((OUT_COLUMNS - 1) * STRIDE_DIM_0 - PADDING_DIM_0);
  assign advance         = enable && (data_in_0_valid || !is_pixel);
  assign data_in_0_ready = enable && is_pixel;

  always_ff @(posedge clk) begin
    if (enable) valid_q <= advance && is_due;
    if (advance) begin
      line_q <= (LINE * DATA_WIDTH)'({line_q, data_in_0});
      step_q <= step_q + 1'b1;
      if (is_due) begin
        due_q  <= due_q + (is_last_column ? STEP_WIDTH'(BACK) : STEP_WIDTH'(STRIDE_DIM_0));
        left_q <= is_last_column ? PLACE_WIDTH'(-PADDING_DIM_0)
                                 : left_q + PLACE_WIDTH'(STRIDE_DIM_0);
        if (is_last_column) top_q <= top_q + PLACE_WIDTH'(STRIDE_DIM_1);
      end
      if (is_last_step) begin
        step_q <= '0;
        due_q  <= STEP_WIDTH'(FIRST);
        left_q <= PLACE_WIDTH'(-PADDING_DIM_0);
        top_q  <= PLACE_WIDTH'(-PADDING_DIM_1);
      end
    end
    if (rst) begin
      valid_q <= 1'b0;
      step_q  <= '0;
      due_q   <= STEP_WIDTH'(FIRST);
      left_q  <= PLACE_WIDTH'(-PADDING_DIM_0);
      top_q   <= PLACE_WIDTH'(-PADDING_DIM_1);
    end
  end

  for (genvar column = 0; column < WIDE; column++) begin : g_column
    logic signed [PLACE_WIDTH-1:0] place;
    assign place = left_q + PLACE_WIDTH'(column);
    always_ff @(posedge clk) begin
      if (advance) inside_columns_q[column] <= place >= 0 && place < PLACE_WIDTH'(COLUMNS);
    end
  end

  for (genvar row = 0; row < HIGH; row++) begin : g_row
    logic signed [PLACE_WIDTH-1:0] place;
    assign place = top_q + PLACE_WIDTH'(row);
    always_ff @(posedge clk) begin
      if (advance) inside_rows_q[row] <= place >= 0 && place < PLACE_WIDTH'(ROWS);
    end
    for (genvar column = 0; column < WIDE; column++) begin : g_place
      localparam int AT = (HIGH - 1 - row) * COLUMNS + WIDE - 1 - column;
      assign window[(row*WIDE+column)*DATA_WIDTH+:DATA_WIDTH] =
          inside_rows_q[row] && inside_columns_q[column] ? line_q[AT*DATA_WIDTH+:DATA_WIDTH] : '0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(WIDE * HIGH * DATA_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (window),
      .data_in_0_valid (valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
