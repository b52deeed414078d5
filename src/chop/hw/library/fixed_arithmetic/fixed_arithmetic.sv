// Sum data_in_0 + ALPHA * data_in_1, the difference, or the product, element by element.
// Latency 2 cycles, 3 with registered operands; throughput 1 pair of beats per cycle.
`default_nettype none

module fixed_arithmetic #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an element of data_in_0, bits
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_1_PRECISION_0       = 8,  // width of an element of data_in_1, bits
    parameter int DATA_IN_1_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_1_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1,  // elements per beat of each stream, 1 or more
    parameter int OPERATION                   = 0,  // 0 sum, 1 difference, 2 product
    parameter longint ALPHA                   = 1,  // factor of data_in_1, steps of 2**-ALPHA_FRAC
    parameter int ALPHA_FRAC                  = 0,  // its fractional bits, 0 or more
    // 1: operands are registered, as multipliers may be far away and block RAM gives its word late
    parameter bit HAS_OPERAND_REGISTER        = 1'b0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_1_PRECISION_0-1:0] data_in_1,
    input  wire logic data_in_1_valid,
    output      logic data_in_1_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_1_PRECISION_0 < 1
      || DATA_OUT_0_PRECISION_0 < 1 || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_arithmetic: widths and lanes must be 1 or more, got %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_IN_1_PRECISION_0, DATA_OUT_0_PRECISION_0,
           DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (OPERATION < 0 || OPERATION > 2) begin : g_refuse_operation
    $error("fixed_arithmetic: OPERATION must be 0, 1 or 2, got %0d", OPERATION);
  end
  if (ALPHA < 0 || ALPHA_FRAC < 0 || (OPERATION == 2 && (ALPHA != 1
      || ALPHA_FRAC != 0))) begin : g_refuse_alpha
    $error("fixed_arithmetic: ALPHA must be 0 or more, and 1 in a product, got %0d / 2**%0d",
           ALPHA, ALPHA_FRAC);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int A_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int B_WIDTH = DATA_IN_1_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;
  localparam int A_SIGNED = A_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);  // as signed numbers
  localparam int B_SIGNED = B_WIDTH + (DATA_IN_1_IS_SIGNED ? 0 : 1) + $clog2(ALPHA);
  localparam int B_FRAC = DATA_IN_1_PRECISION_1 + ALPHA_FRAC;
  localparam bit IS_PRODUCT = OPERATION == 2;
  // Terms are brought to the finer of their two grids; the sum needs one bit more than the wider.
  localparam int FINER = DATA_IN_0_PRECISION_1 > B_FRAC ? DATA_IN_0_PRECISION_1 : B_FRAC;
  localparam int A_SHIFT = IS_PRODUCT ? 0 : FINER - DATA_IN_0_PRECISION_1;
  localparam int B_SHIFT = IS_PRODUCT ? 0 : FINER - B_FRAC;
  localparam int SUM_WIDTH =
      (A_SIGNED + A_SHIFT > B_SIGNED + B_SHIFT ? A_SIGNED + A_SHIFT : B_SIGNED + B_SHIFT) + 1;
  localparam int WIDE = IS_PRODUCT ? A_SIGNED + B_SIGNED : SUM_WIDTH;
  localparam int FRAC = IS_PRODUCT ? DATA_IN_0_PRECISION_1 + B_FRAC : FINER;
  localparam logic signed [WIDE-1:0] FACTOR = WIDE'(ALPHA);

  logic [LANES*(A_WIDTH+B_WIDTH)-1:0] joined, pair;
  logic [LANES*WIDE-1:0] exact, exact_q;
  logic [LANES*OUT_WIDTH-1:0] result;
  logic joined_valid, pair_valid, pair_ready, valid_q;

  always_ff @(posedge clk) begin  // between the operation and the cast
    if (pair_ready) begin
      exact_q <= exact;
      valid_q <= pair_valid;
    end
    if (rst) valid_q <= 1'b0;
  end

  stream_join #(
      .DATA_IN_0_WIDTH(LANES * A_WIDTH),
      .DATA_IN_1_WIDTH(LANES * B_WIDTH)
  ) u_stream_join (
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_in_1       (data_in_1),
      .data_in_1_valid (data_in_1_valid),
      .data_in_1_ready (data_in_1_ready),
      .data_out_0      (joined),
      .data_out_0_valid(joined_valid),
      .data_out_0_ready(pair_ready)
  );

  if (HAS_OPERAND_REGISTER) begin : g_register
    always_ff @(posedge clk) begin
      if (pair_ready) begin
        pair       <= joined;
        pair_valid <= joined_valid;
      end
      if (rst) pair_valid <= 1'b0;
    end
  end else begin : g_no_register
    assign pair       = joined;
    assign pair_valid = joined_valid;
  end

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic [A_WIDTH-1:0] a_code;
    logic [B_WIDTH-1:0] b_code;
    logic signed [WIDE-1:0] a, b;
    assign a_code = pair[lane*A_WIDTH+:A_WIDTH];
    assign b_code = pair[LANES*A_WIDTH+lane*B_WIDTH+:B_WIDTH];
    assign a = WIDE'($signed({DATA_IN_0_IS_SIGNED && a_code[A_WIDTH-1], a_code})) <<< A_SHIFT;
    assign b = (WIDE'($signed({DATA_IN_1_IS_SIGNED && b_code[B_WIDTH-1], b_code})) * FACTOR)
        <<< B_SHIFT;
    if (IS_PRODUCT) begin : g_product
      assign exact[lane*WIDE+:WIDE] = a * b;
    end else if (OPERATION == 1) begin : g_difference
      assign exact[lane*WIDE+:WIDE] = a - b;
    end else begin : g_sum
      assign exact[lane*WIDE+:WIDE] = a + b;
    end
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (WIDE),
      .DATA_IN_0_PRECISION_1      (FRAC),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (exact_q),
      .data_out_0(result)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * OUT_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (valid_q),
      .data_in_0_ready (pair_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
