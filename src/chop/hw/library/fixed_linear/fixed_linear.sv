// Matrix-vector product: data_out_0 = cast(weight * data_in_0 + bias), folded over both dimensions.
// IN_FOLDS x OUT_FOLDS cycles per vector (the next vector loads during the last pass).
//
// Order of the streams, one beat per compute cycle: weights by output fold, then input fold, and in
// a beat element (output lane * input lanes + input lane). One bias beat per output fold.
//
// An operand is fixed point, or MXINT if it has exponents. Its elements are then mantissas. A beat of
// data_in_0 has the exponent of their block above them, and a beat of weights has one above the
// mantissas of each output lane. A shifter raises each beat's dot product by both exponents, one
// cycle later. Blocks may have any size that the input lanes divide.
// The accumulator is exact: ACC_WIDTH comes from the range of the real weights and exponents.
`default_nettype none

module fixed_linear #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1        = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED          = 1'b1,  // two's complement
    parameter int DATA_IN_0_EXPONENT_WIDTH     = 0,  // bits of a block's exponent; 0: fixed point
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 4,  // elements of an input vector
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 2,  // input lanes; divides the size
    parameter int WEIGHT_PRECISION_0           = 8,  // width of a weight, bits, 1 or more
    parameter int WEIGHT_PRECISION_1           = 4,  // its fractional bits
    parameter bit WEIGHT_IS_SIGNED             = 1'b1,  // two's complement
    parameter int WEIGHT_EXPONENT_WIDTH        = 0,  // bits of a block's exponent; 0: fixed point
    parameter bit IS_PACKED                    = 1'b0,  // as in fixed_dot_product
    parameter bit HAS_BIAS                     = 1'b1,  // 0: the bias stream is not used
    parameter int BIAS_PRECISION_0             = 8,  // width of a bias, bits, 1 or more
    parameter int BIAS_PRECISION_1             = 4,  // its fractional bits
    parameter bit BIAS_IS_SIGNED               = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 8,  // elements of an output vector
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 2,  // output lanes; divides the size
    parameter int ACC_WIDTH                    = 24, // accumulator, bits: holds every partial sum
    parameter int OPERAND_REGISTERS            = 1,  // as in fixed_dot_product
    parameter int TREE_STEP                    = 1,  // as in fixed_dot_product
    // Bits of a beat of data_in_0, and of the weights of one output lane.
    parameter int DATA_IN_0_WIDTH =
        DATA_IN_0_PARALLELISM_DIM_0 * DATA_IN_0_PRECISION_0 + DATA_IN_0_EXPONENT_WIDTH,
    parameter int WEIGHT_WIDTH =
        DATA_IN_0_PARALLELISM_DIM_0 * WEIGHT_PRECISION_0 + WEIGHT_EXPONENT_WIDTH
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_OUT_0_PARALLELISM_DIM_0*WEIGHT_WIDTH-1:0] weight,
    input  wire logic weight_valid,
    output      logic weight_ready,

    input  wire logic [DATA_OUT_0_PARALLELISM_DIM_0*BIAS_PRECISION_0-1:0] bias,
    input  wire logic bias_valid,
    output      logic bias_ready,

    output      logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || WEIGHT_PRECISION_0 < 1 || BIAS_PRECISION_0 < 1
      || DATA_OUT_0_PRECISION_0 < 1) begin : g_refuse_size
    $error("fixed_linear: widths must be 1 or more, got %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, WEIGHT_PRECISION_0, BIAS_PRECISION_0, DATA_OUT_0_PRECISION_0);
  end
  if (DATA_IN_0_EXPONENT_WIDTH < 0 || WEIGHT_EXPONENT_WIDTH < 0) begin : g_refuse_exponent
    $error("fixed_linear: exponents must have 0 bits or more, got %0d and %0d",
           DATA_IN_0_EXPONENT_WIDTH, WEIGHT_EXPONENT_WIDTH);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_in
    $error("fixed_linear: the parallelism must divide the size, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
  if (DATA_OUT_0_PARALLELISM_DIM_0 < 1
      || DATA_OUT_0_TENSOR_SIZE_DIM_0 % DATA_OUT_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_out
    $error("fixed_linear: the parallelism must divide the size, got %0d of %0d",
           DATA_OUT_0_PARALLELISM_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0);
  end
`endif

  localparam int IN_LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int OUT_LANES = DATA_OUT_0_PARALLELISM_DIM_0;
  localparam int IN_FOLDS = DATA_IN_0_TENSOR_SIZE_DIM_0 / IN_LANES;
  localparam int OUT_FOLDS = DATA_OUT_0_TENSOR_SIZE_DIM_0 / OUT_LANES;
  localparam int X_BITS = IN_LANES * DATA_IN_0_PRECISION_0;
  localparam int W_BITS = IN_LANES * WEIGHT_PRECISION_0;

  // A vector is kept for OUT_FOLDS passes; two slots at least, to load while computing.
  localparam int SLOTS = OUT_FOLDS == 1 || IN_FOLDS < 2 ? 2 : IN_FOLDS;
  localparam int SLOT_WIDTH = $clog2(SLOTS);
  localparam int LEVEL_WIDTH = $clog2(SLOTS + 1);
  localparam int IN_FOLD_WIDTH = $clog2(IN_FOLDS + 1);
  localparam int OUT_FOLD_WIDTH = $clog2(OUT_FOLDS + 1);

  localparam int SUM_WIDTH = DATA_IN_0_PRECISION_0 + (DATA_IN_0_IS_SIGNED ? 0 : 1)
      + WEIGHT_PRECISION_0 + (WEIGHT_IS_SIGNED ? 0 : 1) + $clog2(IN_LANES);
  localparam bit HAS_SHIFTER = DATA_IN_0_EXPONENT_WIDTH > 0 || WEIGHT_EXPONENT_WIDTH > 0;
  localparam int SHIFT_WIDTH = 1 + (DATA_IN_0_EXPONENT_WIDTH > WEIGHT_EXPONENT_WIDTH
      ? DATA_IN_0_EXPONENT_WIDTH : WEIGHT_EXPONENT_WIDTH);
  localparam int TAG_WIDTH = 3 + (HAS_SHIFTER ? OUT_LANES * SHIFT_WIDTH : 0);
  localparam int PRODUCT_FRAC = DATA_IN_0_PRECISION_1 + WEIGHT_PRECISION_1;
  localparam bit BIAS_IS_FINER = HAS_BIAS && BIAS_PRECISION_1 > PRODUCT_FRAC;
  localparam int ACC_FRAC = BIAS_IS_FINER ? BIAS_PRECISION_1 : PRODUCT_FRAC;
  localparam int DROPPED = ACC_FRAC - DATA_OUT_0_PRECISION_1;
  // Half an output step rides in with the bias, so that the cast needs no adder of its own.
  localparam bit IS_HALF_ADDED = DATA_OUT_0_ROUNDING == 0 && DROPPED > 0;
  localparam logic signed [ACC_WIDTH-1:0] HALF =
      IS_HALF_ADDED ? ACC_WIDTH'(1) << (DROPPED > 0 ? DROPPED - 1 : 0) : '0;

  // Replay buffer: write slots in turn, read them OUT_FOLDS times, free them in the last pass.
  logic [DATA_IN_0_WIDTH-1:0] slots_q[SLOTS];
  logic [DATA_IN_0_WIDTH-1:0] beat;
  logic [SLOT_WIDTH-1:0] write_q, read_q, base_q, read_next;
  logic [LEVEL_WIDTH-1:0] level_q;
  logic [IN_FOLD_WIDTH-1:0] in_fold_q;
  logic [OUT_FOLD_WIDTH-1:0] out_fold_q;
  logic load, issue, free, is_first, is_last, is_last_pass, has_operand;
  logic enable, bias_stall;

  assign data_in_0_ready = level_q != LEVEL_WIDTH'(SLOTS);
  assign load            = data_in_0_valid && data_in_0_ready;
  assign is_first        = in_fold_q == '0;
  assign is_last         = in_fold_q == IN_FOLD_WIDTH'(IN_FOLDS - 1);
  assign is_last_pass    = out_fold_q == OUT_FOLD_WIDTH'(OUT_FOLDS - 1);
  assign has_operand     = is_last_pass ? level_q != '0 : 32'(in_fold_q) < 32'(level_q);
  assign issue           = has_operand && weight_valid && enable;
  assign weight_ready    = has_operand && enable;
  assign free            = issue && is_last_pass;
  assign read_next       = read_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : read_q + 1'b1;
  assign beat            = slots_q[read_q];

  always_ff @(posedge clk) begin
    if (load) begin
      slots_q[write_q] <= data_in_0;
      write_q          <= write_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : write_q + 1'b1;
    end
    if (issue) begin
      in_fold_q <= is_last ? '0 : in_fold_q + 1'b1;
      read_q    <= is_last && !is_last_pass ? base_q : read_next;
      if (is_last) out_fold_q <= is_last_pass ? '0 : out_fold_q + 1'b1;
      if (is_last && is_last_pass) base_q <= read_next;
    end
    if (load && !free) level_q <= level_q + 1'b1;
    if (free && !load) level_q <= level_q - 1'b1;
    if (rst) begin
      write_q    <= '0;
      read_q     <= '0;
      base_q     <= '0;
      level_q    <= '0;
      in_fold_q  <= '0;
      out_fold_q <= '0;
    end
  end

  // The dot products of the elements; a tag travels along.
  logic [OUT_LANES*W_BITS-1:0] elements;
  logic [OUT_LANES*SUM_WIDTH-1:0] dots;
  logic [OUT_LANES*ACC_WIDTH-1:0] aligned, sums;
  logic [TAG_WIDTH-1:0] tag, dot_tag;
  logic sum_valid, sum_first, sum_last;

  assign tag[2:0] = {issue, is_first, is_last};

  for (genvar lane = 0; lane < OUT_LANES; lane++) begin : g_dot
    assign elements[lane*W_BITS+:W_BITS] = weight[lane*WEIGHT_WIDTH+:W_BITS];
    assign aligned[lane*ACC_WIDTH+:ACC_WIDTH] =
        ACC_WIDTH'($signed(dots[lane*SUM_WIDTH+:SUM_WIDTH])) <<< (ACC_FRAC - PRODUCT_FRAC);
  end

  fixed_dot_product #(
      .DATA_IN_0_PRECISION_0      (DATA_IN_0_PRECISION_0),
      .DATA_IN_0_IS_SIGNED        (DATA_IN_0_IS_SIGNED),
      .WEIGHT_PRECISION_0         (WEIGHT_PRECISION_0),
      .WEIGHT_IS_SIGNED           (WEIGHT_IS_SIGNED),
      .IS_PACKED                  (IS_PACKED),
      .DATA_IN_0_PARALLELISM_DIM_0(IN_LANES),
      .OUTPUTS                    (OUT_LANES),
      .TAG_WIDTH                  (TAG_WIDTH),
      .OPERAND_REGISTERS          (OPERAND_REGISTERS),
      .TREE_STEP                  (TREE_STEP)
  ) u_fixed_dot_product (
      .clk       (clk),
      .rst       (rst),
      .enable    (enable),
      .tag_in    (tag),
      .data_in_0 (beat[X_BITS-1:0]),
      .weight    (elements),
      .data_out_0(dots),
      .tag_out   (dot_tag)
  );

  if (HAS_SHIFTER) begin : g_shifter
    logic [OUT_LANES*ACC_WIDTH-1:0] shifted_q;
    logic [2:0] shifted_tag_q;

    assign sums = shifted_q;
    assign {sum_valid, sum_first, sum_last} = shifted_tag_q;

    for (genvar lane = 0; lane < OUT_LANES; lane++) begin : g_lane
      localparam int AT = 3 + lane * SHIFT_WIDTH;
      // The exponents are the bits above the elements: none for fixed point.
      assign tag[AT+:SHIFT_WIDTH] = SHIFT_WIDTH'(beat >> X_BITS)
          + SHIFT_WIDTH'(weight[lane*WEIGHT_WIDTH+:WEIGHT_WIDTH] >> W_BITS);
      always_ff @(posedge clk) begin
        if (enable) begin
          shifted_q[lane*ACC_WIDTH+:ACC_WIDTH] <=
              aligned[lane*ACC_WIDTH+:ACC_WIDTH] << dot_tag[AT+:SHIFT_WIDTH];
        end
      end
    end

    always_ff @(posedge clk) begin
      if (enable) shifted_tag_q <= dot_tag[2:0];
      if (rst) shifted_tag_q <= '0;
    end
  end else begin : g_no_shifter
    assign sums = aligned;
    assign {sum_valid, sum_first, sum_last} = dot_tag;
  end

  logic [OUT_LANES*ACC_WIDTH-1:0] acc_q;
  logic [OUT_LANES*DATA_OUT_0_PRECISION_0-1:0] cast;
  logic acc_done_q, skid_ready;

  assign bias_stall = HAS_BIAS && sum_valid && sum_first && !bias_valid;
  assign enable     = skid_ready && !bias_stall;
  assign bias_ready = sum_valid && sum_first && skid_ready;

  for (genvar lane = 0; lane < OUT_LANES; lane++) begin : g_acc
    logic signed [ACC_WIDTH-1:0] start, sum;
    if (HAS_BIAS) begin : g_bias
      logic sign;
      assign sign = BIAS_IS_SIGNED && bias[lane*BIAS_PRECISION_0+BIAS_PRECISION_0-1];
      assign start = (ACC_WIDTH'($signed({sign, bias[lane*BIAS_PRECISION_0+:BIAS_PRECISION_0]}))
          <<< (ACC_FRAC - BIAS_PRECISION_1)) + HALF;
    end else begin : g_no_bias
      assign start = HALF;
    end
    assign sum = $signed(sums[lane*ACC_WIDTH+:ACC_WIDTH]);
    always_ff @(posedge clk) begin
      if (enable && sum_valid) begin
        acc_q[lane*ACC_WIDTH+:ACC_WIDTH] <=
            sum + (sum_first ? start : $signed(acc_q[lane*ACC_WIDTH+:ACC_WIDTH]));
      end
    end
  end

  always_ff @(posedge clk) begin
    if (enable) acc_done_q <= sum_valid && sum_last;
    if (rst) acc_done_q <= 1'b0;
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (ACC_WIDTH),
      .DATA_IN_0_PRECISION_1      (ACC_FRAC),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(OUT_LANES),
      .IS_HALF_ADDED              (IS_HALF_ADDED)
  ) u_fixed_cast (
      .data_in_0 (acc_q),
      .data_out_0(cast)
  );

  skid_buffer #(
      .DATA_WIDTH(OUT_LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (cast),
      .data_in_0_valid (acc_done_q && !bias_stall),
      .data_in_0_ready (skid_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  if (!HAS_BIAS) begin : g_unused_bias
    wire logic unused_ok = &{1'b0, bias, 32'(BIAS_PRECISION_1), BIAS_IS_SIGNED};
  end

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (ACC_WIDTH < DROPPED + 1) begin : g_refuse_accumulator
    $error("fixed_linear: ACC_WIDTH must be above the %0d bits dropped, got %0d",
           DROPPED, ACC_WIDTH);
  end
`endif

endmodule

`default_nettype wire
