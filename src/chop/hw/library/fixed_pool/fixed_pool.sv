// One number for every window of an image, channel by channel: its maximum, or its sum over a
// constant, where padding counts as zeros, or over the number of its pixels inside the image.
// Images stream by row, column, channel. KERNEL_SIZE_DIM_0 x KERNEL_SIZE_DIM_1 x channels / lanes
// cycles per output pixel.
`default_nettype none

module fixed_pool #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1        = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED          = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 1,  // channels
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1  = 4,  // columns of the image
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_2  = 4,  // rows of the image
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 1,  // channels per beat; divides the channels
    parameter int KERNEL_SIZE_DIM_0            = 2,  // columns of the window
    parameter int KERNEL_SIZE_DIM_1            = 2,  // rows of the window
    parameter int STRIDE_DIM_0                 = 2,  // columns between windows
    parameter int STRIDE_DIM_1                 = 2,  // rows between windows
    parameter int PADDING_DIM_0                = 0,  // columns added left and right
    parameter int PADDING_DIM_1                = 0,  // rows added above and below
    parameter bit IS_MAXIMUM                   = 1'b0,  // the maximum; the format stays
    parameter bit COUNTS_PADDING               = 1'b1,  // 0: the mean of what is inside the image
    parameter bit HAS_PARTS                    = 1'b0,  // of the division, as in fixed_divide
    // the sum is divided by it, 1 or more: the mean unless told otherwise
    parameter int DIVISOR                      = KERNEL_SIZE_DIM_0 * KERNEL_SIZE_DIM_1
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1 || DIVISOR < 1) begin : g_refuse_size
    $error("fixed_pool: widths and DIVISOR must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0, DIVISOR);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_lanes
    $error("fixed_pool: the parallelism must divide the channels, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
  if (IS_MAXIMUM && DATA_OUT_0_PRECISION_0 != DATA_IN_0_PRECISION_0) begin : g_refuse_format
    $error("fixed_pool: a maximum keeps its width, got %0d of %0d",
           DATA_OUT_0_PRECISION_0, DATA_IN_0_PRECISION_0);
  end
  if (!COUNTS_PADDING && DIVISOR != KERNEL_SIZE_DIM_0 * KERNEL_SIZE_DIM_1) begin : g_refuse_count
    $error("fixed_pool: a mean of what is inside has no DIVISOR of its own, got %0d", DIVISOR);
  end
`endif

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int BEATS = DATA_IN_0_TENSOR_SIZE_DIM_0 / LANES;
  localparam int AREA = KERNEL_SIZE_DIM_0 * KERNEL_SIZE_DIM_1;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int AREA_WIDTH = $clog2(AREA + 1);
  localparam int DIVISOR_WIDTH = $clog2(DIVISOR + 1);
  localparam int X_WIDTH = IN_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);  // as a signed number
  // A running maximum, or the exact sum of a window.
  localparam int KEPT_WIDTH = IS_MAXIMUM ? IN_WIDTH : X_WIDTH + $clog2(AREA);
  localparam logic [IN_WIDTH-1:0] LOWEST =  // above no element
      DATA_IN_0_IS_SIGNED ? IN_WIDTH'(1) << (IN_WIDTH - 1) : '0;
  localparam logic [IN_WIDTH-1:0] PAD = IS_MAXIMUM ? LOWEST : '0;

  logic [LANES*IN_WIDTH-1:0] window;
  logic window_valid, window_ready;

  sliding_window #(
      .DATA_WIDTH                 (LANES * IN_WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0(DATA_IN_0_TENSOR_SIZE_DIM_0 / LANES),
      .DATA_IN_0_TENSOR_SIZE_DIM_1(DATA_IN_0_TENSOR_SIZE_DIM_1),
      .DATA_IN_0_TENSOR_SIZE_DIM_2(DATA_IN_0_TENSOR_SIZE_DIM_2),
      .KERNEL_SIZE_DIM_0          (KERNEL_SIZE_DIM_0),
      .KERNEL_SIZE_DIM_1          (KERNEL_SIZE_DIM_1),
      .STRIDE_DIM_0               (STRIDE_DIM_0),
      .STRIDE_DIM_1               (STRIDE_DIM_1),
      .PADDING_DIM_0              (PADDING_DIM_0),
      .PADDING_DIM_1              (PADDING_DIM_1),
      .PAD                        ({LANES{PAD}})
  ) u_sliding_window (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (window),
      .data_out_0_valid(window_valid),
      .data_out_0_ready(window_ready)
  );

  // One running number per channel; the last pixel of a window sends it on. That of the beat to come
  // is read a beat ahead, so that a cycle holds the reduction alone, not the reading too.
  (* ram_style = "distributed" *)  // block RAM would give it late in the cycle
  (* no_rw_check *)  // what is read is of another beat
  logic [LANES*KEPT_WIDTH-1:0] kept_q[BEATS];
  logic [LANES*KEPT_WIDTH-1:0] ahead_q, reduced;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] result;
  logic [BEAT_WIDTH-1:0] beat_q, beat_next;
  logic [AREA_WIDTH-1:0] pixel_q;
  logic result_valid;
  logic take, is_first, is_last;

  assign take      = window_valid && window_ready;
  assign is_first  = pixel_q == '0;
  assign is_last   = pixel_q == AREA_WIDTH'(AREA - 1);
  assign beat_next = beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic [IN_WIDTH-1:0] code;
    assign code = window[lane*IN_WIDTH+:IN_WIDTH];
    if (IS_MAXIMUM) begin : g_maximum
      logic [IN_WIDTH-1:0] old;
      logic is_larger;
      assign old = ahead_q[lane*IN_WIDTH+:IN_WIDTH];
      if (DATA_IN_0_IS_SIGNED) begin : g_signed
        assign is_larger = $signed(code) > $signed(old);
      end else begin : g_unsigned
        assign is_larger = code > old;
      end
      assign reduced[lane*IN_WIDTH+:IN_WIDTH] = is_first || is_larger ? code : old;
    end else begin : g_sum
      logic signed [KEPT_WIDTH-1:0] x, old;
      assign x = KEPT_WIDTH'($signed({DATA_IN_0_IS_SIGNED && code[IN_WIDTH-1], code}));
      assign old = ahead_q[lane*KEPT_WIDTH+:KEPT_WIDTH];
      assign reduced[lane*KEPT_WIDTH+:KEPT_WIDTH] = is_first ? x : x + old;
    end
  end

  always_ff @(posedge clk) begin
    if (take) begin
      kept_q[beat_q] <= reduced;
      ahead_q        <= BEATS > 1 ? kept_q[beat_next] : reduced;
      beat_q         <= beat_next;
      if (beat_q == BEAT_WIDTH'(BEATS - 1)) pixel_q <= is_last ? '0 : pixel_q + 1'b1;
    end
    if (rst) begin
      beat_q  <= '0;
      pixel_q <= '0;
    end
  end

  // What a sum is divided by: the pixels of the window that are inside the image, or a constant.
  logic [DIVISOR_WIDTH-1:0] counted;
  if (IS_MAXIMUM || COUNTS_PADDING) begin : g_all
    assign counted = DIVISOR_WIDTH'(DIVISOR);
  end else begin : g_inside
    localparam int COLUMNS = DATA_IN_0_TENSOR_SIZE_DIM_1;
    localparam int ROWS = DATA_IN_0_TENSOR_SIZE_DIM_2;
    localparam int OUT_COLUMNS =
        (COLUMNS + 2 * PADDING_DIM_0 - KERNEL_SIZE_DIM_0) / STRIDE_DIM_0 + 1;
    localparam int OUT_ROWS = (ROWS + 2 * PADDING_DIM_1 - KERNEL_SIZE_DIM_1) / STRIDE_DIM_1 + 1;
    localparam int LAST_LEFT = (OUT_COLUMNS - 1) * STRIDE_DIM_0 - PADDING_DIM_0;
    localparam int LAST_TOP = (OUT_ROWS - 1) * STRIDE_DIM_1 - PADDING_DIM_1;
    localparam int KERNEL_WIDTH = $clog2(KERNEL_SIZE_DIM_0 + KERNEL_SIZE_DIM_1);
    // Signed positions: from -padding to the end of the last window.
    localparam int POSITION_WIDTH =
        $clog2(ROWS + COLUMNS + KERNEL_SIZE_DIM_0 + KERNEL_SIZE_DIM_1 + 1) + 2;
    localparam logic signed [POSITION_WIDTH-1:0] WIDTH = POSITION_WIDTH'(COLUMNS);
    localparam logic signed [POSITION_WIDTH-1:0] HEIGHT = POSITION_WIDTH'(ROWS);
    // Known from the beginning of a window, wanted with its last pixel: there is time for registers.
    localparam bit HAS_TIME = (AREA - 1) * BEATS >= 2;
    logic signed [POSITION_WIDTH-1:0] left_q, top_q, right, bottom, columns, rows;
    logic [KERNEL_WIDTH-1:0] columns_here, rows_here;
    logic ends_window, is_last_left;
    wire logic unused_ok = &{1'b0, columns, rows};  // their high bits: no window is so large

    assign right        = left_q + POSITION_WIDTH'(KERNEL_SIZE_DIM_0);
    assign bottom       = top_q + POSITION_WIDTH'(KERNEL_SIZE_DIM_1);
    assign columns      = (right > WIDTH ? WIDTH : right) - (left_q < 0 ? '0 : left_q);
    assign rows         = (bottom > HEIGHT ? HEIGHT : bottom) - (top_q < 0 ? '0 : top_q);
    if (HAS_TIME) begin : g_early
      always_ff @(posedge clk) begin
        columns_here <= KERNEL_WIDTH'(columns);
        rows_here    <= KERNEL_WIDTH'(rows);
        counted      <= DIVISOR_WIDTH'(32'(columns_here) * 32'(rows_here));
      end
    end else begin : g_at_once
      assign columns_here = KERNEL_WIDTH'(columns);
      assign rows_here    = KERNEL_WIDTH'(rows);
      assign counted      = DIVISOR_WIDTH'(32'(columns_here) * 32'(rows_here));
    end
    assign ends_window  = take && is_last && beat_q == BEAT_WIDTH'(BEATS - 1);
    assign is_last_left = left_q == POSITION_WIDTH'(LAST_LEFT);

    always_ff @(posedge clk) begin
      if (ends_window) begin
        left_q <= is_last_left ? -POSITION_WIDTH'(PADDING_DIM_0)
            : left_q + POSITION_WIDTH'(STRIDE_DIM_0);
        if (is_last_left) begin
          top_q <= top_q == POSITION_WIDTH'(LAST_TOP) ? -POSITION_WIDTH'(PADDING_DIM_1)
              : top_q + POSITION_WIDTH'(STRIDE_DIM_1);
        end
      end
      if (rst) begin
        left_q <= -POSITION_WIDTH'(PADDING_DIM_0);
        top_q  <= -POSITION_WIDTH'(PADDING_DIM_1);
      end
    end
  end

  if (IS_MAXIMUM) begin : g_as_it_is
    wire logic unused_ok = &{1'b0, counted};
    always_ff @(posedge clk) begin
      if (window_ready) begin
        result       <= reduced;
        result_valid <= window_valid && is_last;
      end
      if (rst) result_valid <= 1'b0;
    end
  end else begin : g_divided
    localparam int LATENCY = HAS_PARTS ? 3 : 2;
    logic [LATENCY-1:0] valid_q;
    assign result_valid = valid_q[LATENCY-1];
    always_ff @(posedge clk) begin
      if (window_ready) valid_q <= LATENCY'({valid_q, window_valid && is_last});
      if (rst) valid_q <= '0;
    end
    fixed_divide #(
        .DATA_IN_0_PRECISION_0      (KEPT_WIDTH),
        .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1),
        .DIVISOR                    (DIVISOR),
        .IS_CHOSEN                  (!COUNTS_PADDING),
        .HAS_PARTS                  (HAS_PARTS),
        .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
        .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
        .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
        .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
        .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
        .DATA_IN_0_PARALLELISM_DIM_0(LANES)
    ) u_fixed_divide (
        .clk       (clk),
        .enable    (window_ready),
        .divisor   (counted),
        .data_in_0 (reduced),
        .data_out_0(result)
    );
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (result_valid),
      .data_in_0_ready (window_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
