// Maximum of every window of an image, channel by channel.
// Images stream by row, column, channel. KERNEL_SIZE_DIM_0 x KERNEL_SIZE_DIM_1 x channels / lanes
// cycles per output pixel.
`default_nettype none

module fixed_max_pool #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // width of an input element, bits, 1 or more
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 1,  // channels
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1  = 4,  // columns of the image
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_2  = 4,  // rows of the image
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 1,  // channels per beat; divides the channels
    parameter int KERNEL_SIZE_DIM_0            = 2,  // columns of the window
    parameter int KERNEL_SIZE_DIM_1            = 2,  // rows of the window
    parameter int STRIDE_DIM_0                 = 2,  // columns between windows
    parameter int STRIDE_DIM_1                 = 2,  // rows between windows
    parameter int PADDING_DIM_0                = 0,  // columns added left and right
    parameter int PADDING_DIM_1                = 0  // rows added above and below
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int BEATS = DATA_IN_0_TENSOR_SIZE_DIM_0 / LANES;
  localparam int AREA = KERNEL_SIZE_DIM_0 * KERNEL_SIZE_DIM_1;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int AREA_WIDTH = $clog2(AREA + 1);
  localparam logic [IN_WIDTH-1:0] LOWEST =  // above no element
      DATA_IN_0_IS_SIGNED ? IN_WIDTH'(1) << (IN_WIDTH - 1) : '0;

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
      .PAD                        ({LANES{LOWEST}})
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

  // One running best per channel; the last pixel of a window sends it on.
  logic [LANES*IN_WIDTH-1:0] kept_q[BEATS];
  logic [LANES*IN_WIDTH-1:0] kept, best;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [AREA_WIDTH-1:0] pixel_q;
  logic take, is_first, is_last;

  assign take     = window_valid && window_ready;
  assign is_first = pixel_q == '0;
  assign is_last  = pixel_q == AREA_WIDTH'(AREA - 1);
  assign kept     = kept_q[beat_q];

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic [IN_WIDTH-1:0] x, old;
    logic is_larger;
    assign x   = window[lane*IN_WIDTH+:IN_WIDTH];
    assign old = kept[lane*IN_WIDTH+:IN_WIDTH];
    if (DATA_IN_0_IS_SIGNED) begin : g_signed
      assign is_larger = $signed(x) > $signed(old);
    end else begin : g_unsigned
      assign is_larger = x > old;
    end
    assign best[lane*IN_WIDTH+:IN_WIDTH] = is_first || is_larger ? x : old;
  end

  always_ff @(posedge clk) begin
    if (take) begin
      kept_q[beat_q] <= best;
      beat_q         <= beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;
      if (beat_q == BEAT_WIDTH'(BEATS - 1)) pixel_q <= is_last ? '0 : pixel_q + 1'b1;
    end
    if (rst) begin
      beat_q  <= '0;
      pixel_q <= '0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_IN_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (best),
      .data_in_0_valid (window_valid && is_last),
      .data_in_0_ready (window_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
