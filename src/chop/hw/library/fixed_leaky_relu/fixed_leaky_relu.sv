// Leaky rectifier: x where x >= 0, slope * x elsewhere. The slope is the constant NEGATIVE_SLOPE, or
// comes from the stream `weight`, one signed number per channel, in the order of the channels.
// Latency 2 cycles, throughput 1 beat per cycle.
`default_nettype none

module fixed_leaky_relu #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter bit HAS_WEIGHT                  = 1'b0,  // 0: the stream of weights is not used
    parameter int WEIGHT_PRECISION_0          = 8,  // width of a signed weight, bits, 1 or more
    parameter longint NEGATIVE_SLOPE          = 3,  // constant slope, steps of its fraction, 0 or more
    parameter int NEGATIVE_SLOPE_FRAC         = 8,  // fractional bits of any slope, 0 or more
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*WEIGHT_PRECISION_0-1:0] weight,
    input  wire logic weight_valid,
    output      logic weight_ready,

    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || WEIGHT_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_leaky_relu: widths and lanes must be 1 or more, got %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, WEIGHT_PRECISION_0, DATA_OUT_0_PRECISION_0,
           DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (NEGATIVE_SLOPE < 0 || NEGATIVE_SLOPE_FRAC < 0) begin : g_refuse_slope
    $error("fixed_leaky_relu: the slope must be 0 or more, got %0d / 2**%0d",
           NEGATIVE_SLOPE, NEGATIVE_SLOPE_FRAC);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;
  localparam int X_WIDTH = IN_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);  // as a signed number
  localparam int SLOPE_WIDTH =  // with a sign
      HAS_WEIGHT ? WEIGHT_PRECISION_0 : $clog2(NEGATIVE_SLOPE + 64'd1) + 1;
  localparam int GROWTH =  // of the steeper side
      SLOPE_WIDTH > NEGATIVE_SLOPE_FRAC ? SLOPE_WIDTH : NEGATIVE_SLOPE_FRAC;
  localparam int WIDE = X_WIDTH + GROWTH;

  logic [LANES*WIDE-1:0] scaled, scaled_q;
  logic [LANES*OUT_WIDTH-1:0] result;
  logic has_slope, valid_q, enable;

  assign has_slope       = !HAS_WEIGHT || weight_valid;
  assign data_in_0_ready = enable && has_slope;
  assign weight_ready    = enable && data_in_0_valid;

  always_ff @(posedge clk) begin  // between the product and the cast
    if (enable) begin
      scaled_q <= scaled;
      valid_q  <= data_in_0_valid && has_slope;
    end
    if (rst) valid_q <= 1'b0;
  end

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [WIDE-1:0] x, slope;
    logic is_negative;
    if (HAS_WEIGHT) begin : g_weight
      assign slope = WIDE'($signed(weight[lane*WEIGHT_PRECISION_0+:WEIGHT_PRECISION_0]));
    end else begin : g_constant
      assign slope = WIDE'(NEGATIVE_SLOPE);
    end
    assign is_negative = DATA_IN_0_IS_SIGNED && data_in_0[lane*IN_WIDTH+IN_WIDTH-1];
    assign x = WIDE'($signed({is_negative, data_in_0[lane*IN_WIDTH+:IN_WIDTH]}));
    assign scaled[lane*WIDE+:WIDE] = is_negative ? x * slope : x <<< NEGATIVE_SLOPE_FRAC;
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (WIDE),
      .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1 + NEGATIVE_SLOPE_FRAC),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (scaled_q),
      .data_out_0(result)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * OUT_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  if (!HAS_WEIGHT) begin : g_unused_weight
    wire logic unused_ok = &{1'b0, weight};
  end

endmodule

`default_nettype wire
