// One number for every window of an image, channel by channel: its maximum, or its sum over a
// constant, where padding counts as zeros.
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
`endif

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int BEATS = DATA_IN_0_TENSOR_SIZE_DIM_0 / LANES;
  localparam int AREA = KERNEL_SIZE_DIM_0 * KERNEL_SIZE_DIM_1;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int AREA_WIDTH = $clog2(AREA + 1);
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

  // One running number per channel; the last pixel of a window sends it on.
  logic [LANES*KEPT_WIDTH-1:0] kept_q[BEATS];
  logic [LANES*KEPT_WIDTH-1:0] kept, reduced;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] result;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [AREA_WIDTH-1:0] pixel_q;
  logic take, is_first, is_last;

  assign take     = window_valid && window_ready;
  assign is_first = pixel_q == '0;
  assign is_last  = pixel_q == AREA_WIDTH'(AREA - 1);
  assign kept     = kept_q[beat_q];

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic [IN_WIDTH-1:0] code;
    assign code = window[lane*IN_WIDTH+:IN_WIDTH];
    if (IS_MAXIMUM) begin : g_maximum
      logic [IN_WIDTH-1:0] old;
      logic is_larger;
      assign old = kept[lane*IN_WIDTH+:IN_WIDTH];
      if (DATA_IN_0_IS_SIGNED) begin : g_signed
        assign is_larger = $signed(code) > $signed(old);
      end else begin : g_unsigned
        assign is_larger = code > old;
      end
      assign reduced[lane*IN_WIDTH+:IN_WIDTH] = is_first || is_larger ? code : old;
    end else begin : g_sum
      logic signed [KEPT_WIDTH-1:0] x, old;
      assign x = KEPT_WIDTH'($signed({DATA_IN_0_IS_SIGNED && code[IN_WIDTH-1], code}));
      assign old = kept[lane*KEPT_WIDTH+:KEPT_WIDTH];
      assign reduced[lane*KEPT_WIDTH+:KEPT_WIDTH] = is_first ? x : x + old;
    end
  end

  always_ff @(posedge clk) begin
    if (take) begin
      kept_q[beat_q] <= reduced;
      beat_q         <= beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;
      if (beat_q == BEAT_WIDTH'(BEATS - 1)) pixel_q <= is_last ? '0 : pixel_q + 1'b1;
    end
    if (rst) begin
      beat_q  <= '0;
      pixel_q <= '0;
    end
  end

  if (IS_MAXIMUM) begin : g_as_it_is
    assign result = reduced;
  end else begin : g_divided
    fixed_divide #(
        .DATA_IN_0_PRECISION_0      (KEPT_WIDTH),
        .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1),
        .DIVISOR                    (DIVISOR),
        .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
        .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
        .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
        .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
        .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
        .DATA_IN_0_PARALLELISM_DIM_0(LANES)
    ) u_fixed_divide (
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
      .data_in_0_valid (window_valid && is_last),
      .data_in_0_ready (window_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
