// Piecewise sigmoid min(max(x + 3, 0), 6) / 6, or swish: x times that.
// Latency 4 cycles, of swish 5; throughput 1 beat per cycle.
`default_nettype none

module fixed_hard_activation #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter bit IS_SWISH                    = 1'b0,  // 1: swish, 0: sigmoid
    parameter bit HAS_PARTS                   = 1'b0,  // of the division, as in fixed_divide
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat, 1 or more
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
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_hard_activation: widths and lanes must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (DATA_IN_0_PRECISION_1 < 0) begin : g_refuse_steps
    $error("fixed_hard_activation: fractional bits must be 0 or more, got %0d",
           DATA_IN_0_PRECISION_1);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;
  // Wide enough for x + 3 and for the constant 6 in the steps of x.
  localparam int X_WIDTH = IN_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);  // as a signed number
  localparam int SIX_WIDTH = DATA_IN_0_PRECISION_1 + 4;
  localparam int CLIP_WIDTH = (X_WIDTH > SIX_WIDTH ? X_WIDTH : SIX_WIDTH) + 1;
  localparam logic signed [CLIP_WIDTH-1:0] THREE = CLIP_WIDTH'(3) <<< DATA_IN_0_PRECISION_1;
  localparam logic signed [CLIP_WIDTH-1:0] SIX = CLIP_WIDTH'(6) <<< DATA_IN_0_PRECISION_1;
  localparam int DIVIDEND_WIDTH = IS_SWISH ? X_WIDTH + SIX_WIDTH : CLIP_WIDTH;

  localparam int LATENCY = (IS_SWISH ? 2 : 1) + (HAS_PARTS ? 3 : 2);  // with that of fixed_divide

  logic [LANES*DIVIDEND_WIDTH-1:0] dividend_q;
  logic [LANES*OUT_WIDTH-1:0] result;
  logic [LATENCY-1:0] valid_q;
  logic enable;

  assign data_in_0_ready = enable;

  always_ff @(posedge clk) begin
    if (enable) valid_q <= LATENCY'({valid_q, data_in_0_valid});
    if (rst) valid_q <= '0;
  end

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [CLIP_WIDTH-1:0] x, raised, clipped;
    logic sign;
    // x + 3 held between 0 and 6
    assign sign = DATA_IN_0_IS_SIGNED && data_in_0[lane*IN_WIDTH+IN_WIDTH-1];
    assign x = CLIP_WIDTH'($signed({sign, data_in_0[lane*IN_WIDTH+:IN_WIDTH]}));
    assign raised = x + THREE;
    assign clipped = raised < 0 ? '0 : raised > SIX ? SIX : raised;
    if (IS_SWISH) begin : g_swish
      logic signed [CLIP_WIDTH-1:0] x_q, clipped_q;
      always_ff @(posedge clk) begin
        if (enable) begin
          x_q       <= x;
          clipped_q <= clipped;
          dividend_q[lane*DIVIDEND_WIDTH+:DIVIDEND_WIDTH] <=
              DIVIDEND_WIDTH'(x_q) * DIVIDEND_WIDTH'(clipped_q);
        end
      end
    end else begin : g_sigmoid
      always_ff @(posedge clk) begin
        if (enable) dividend_q[lane*DIVIDEND_WIDTH+:DIVIDEND_WIDTH] <= clipped;
      end
    end
  end

  fixed_divide #(
      .DATA_IN_0_PRECISION_0      (DIVIDEND_WIDTH),
      .DATA_IN_0_PRECISION_1      ((IS_SWISH ? 2 : 1) * DATA_IN_0_PRECISION_1),
      .DIVISOR                    (6),
      .HAS_PARTS                  (HAS_PARTS),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_divide (
      .clk       (clk),
      .enable    (enable),
      .divisor   (3'd6),
      .data_in_0 (dividend_q),
      .data_out_0(result)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * OUT_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (valid_q[LATENCY-1]),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
