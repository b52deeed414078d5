// Normalises rows: (x - mean) / sqrt(variance + eps), or x / sqrt(mean of squares + eps), times a
// weight and plus a bias for each element of a row; both come as streams in the order of the row.
// With N elements, S their sum (0 where not centred) and G = GUARD:
//   U = (N * sum(x * x) - S * S) * 2**G + EPS, r * 2**(-18 - k) = 1 / sqrt(U) by table and Newton,
//   z = (N * x - S) * r >> (k - G/2 + 2), data_out_0 = cast(z * 2**-16 * weight + bias).
// Rows overlap: N / lanes cycles for each. Latency: a row and 30 cycles.
`default_nettype none

module fixed_norm #(
    parameter int DATA_IN_0_PRECISION_0       = 8,     // width of an input element, 1 to 16 bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0 = 8,     // elements of a row
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 2,     // elements per beat; divides the row
    parameter bit IS_CENTRED                  = 1'b1,  // 1: the mean is taken away
    parameter int GUARD                       = 14,    // even, 0 or more
    parameter logic [63:0] EPS                = 64'd0, // in the units of U
    parameter int U_WIDTH                     = 40,    // bits of U, 18 to 62
    parameter int WEIGHT_PRECISION_0          = 8,     // width of a weight, bits, 1 or more
    parameter int WEIGHT_PRECISION_1          = 4,     // its fractional bits
    parameter bit WEIGHT_IS_SIGNED            = 1'b1,  // two's complement
    parameter bit HAS_BIAS                    = 1'b1,  // 0: the bias stream is not used
    parameter int BIAS_PRECISION_0            = 8,     // width of a bias, bits, 1 or more
    parameter int BIAS_PRECISION_1            = 4,     // its fractional bits
    parameter bit BIAS_IS_SIGNED              = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,     // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,     // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,     // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,     // as in fixed_cast
    parameter     INIT_FILE                   = "root.mem"  // 256 words of 16 bits
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*WEIGHT_PRECISION_0-1:0] weight,
    input  wire logic weight_valid,
    output      logic weight_ready,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*BIAS_PRECISION_0-1:0] bias,
    input  wire logic bias_valid,
    output      logic bias_ready,

    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PRECISION_0 > 16 || WEIGHT_PRECISION_0 < 1
      || BIAS_PRECISION_0 < 1 || DATA_OUT_0_PRECISION_0 < 1) begin : g_refuse_width
    $error("fixed_norm: an input has 1 to 16 bits, others 1 or more, got %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, WEIGHT_PRECISION_0, BIAS_PRECISION_0, DATA_OUT_0_PRECISION_0);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_size
    $error("fixed_norm: the parallelism must divide the row, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
  if (GUARD < 0 || GUARD % 2 != 0 || U_WIDTH < 18 || U_WIDTH > 62) begin : g_refuse_sum
    $error("fixed_norm: GUARD must be even and U have 18 to 62 bits, got %0d and %0d",
           GUARD, U_WIDTH);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int SIZE = DATA_IN_0_TENSOR_SIZE_DIM_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int BEATS = SIZE / LANES;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int X_WIDTH = WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);  // as a signed number
  localparam int SQUARE_WIDTH = 2 * X_WIDTH;
  localparam int GROWTH = $clog2(SIZE + 1);
  localparam int SUM_WIDTH = X_WIDTH + GROWTH;
  localparam int SQUARES_WIDTH = SQUARE_WIDTH + GROWTH;
  localparam int Q_WIDTH = SQUARES_WIDTH + GROWTH + 1;
  localparam int EVEN_WIDTH = U_WIDTH + U_WIDTH % 2;
  localparam int PLACE_WIDTH = $clog2(EVEN_WIDTH);
  localparam int R_WIDTH = 18;
  localparam int C_WIDTH = X_WIDTH + GROWTH + 1;
  localparam int PRODUCT_WIDTH = C_WIDTH + R_WIDTH + 1;
  localparam int Z_WIDTH = 17 + ($clog2(SIZE + 1) + 1) / 2;  // |z| is below sqrt(SIZE)
  localparam int DELAY = 19;  // registers from an element to the inverse root

  // -- sums of the elements and of their squares --------------------------------------------------

  logic [LANES*X_WIDTH-1:0] x_q;
  logic [LANES*SQUARE_WIDTH-1:0] square_q;
  logic signed [SUM_WIDTH-1:0] beat_sum, beat_sum_q, sum_q;
  logic [SQUARES_WIDTH-1:0] beat_squares, beat_squares_q, squares_q;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [DELAY*LANES*WIDTH-1:0] line_q;
  logic [DELAY-1:0] valid_q;
  logic [1:0] first_q;
  logic sum_enable;

  assign data_in_0_ready = sum_enable;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_square
    logic signed [X_WIDTH-1:0] x;
    if (DATA_IN_0_IS_SIGNED) begin : g_signed
      assign x = $signed(data_in_0[lane*WIDTH+:WIDTH]);
    end else begin : g_unsigned
      assign x = $signed({1'b0, data_in_0[lane*WIDTH+:WIDTH]});
    end
    always_ff @(posedge clk) begin
      if (sum_enable) begin
        x_q[lane*X_WIDTH+:X_WIDTH]                <= x;
        square_q[lane*SQUARE_WIDTH+:SQUARE_WIDTH] <= SQUARE_WIDTH'(x) * SQUARE_WIDTH'(x);
      end
    end
  end

  always_comb begin
    beat_sum     = '0;
    beat_squares = '0;
    for (int lane = 0; lane < LANES; lane++) begin
      beat_sum = beat_sum + SUM_WIDTH'($signed(x_q[lane*X_WIDTH+:X_WIDTH]));
      beat_squares = beat_squares + SQUARES_WIDTH'(square_q[lane*SQUARE_WIDTH+:SQUARE_WIDTH]);
    end
  end

  always_ff @(posedge clk) begin
    if (sum_enable) begin
      line_q         <= {line_q[(DELAY-1)*LANES*WIDTH-1:0], data_in_0};
      valid_q        <= {valid_q[DELAY-2:0], data_in_0_valid};
      first_q        <= {first_q[0], beat_q == '0};
      beat_sum_q     <= IS_CENTRED ? beat_sum : '0;
      beat_squares_q <= beat_squares;
      if (data_in_0_valid) begin
        beat_q <= beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;
      end
      if (valid_q[1]) begin
        sum_q     <= first_q[1] ? beat_sum_q : sum_q + beat_sum_q;
        squares_q <= first_q[1] ? beat_squares_q : squares_q + beat_squares_q;
      end
    end
    if (rst) begin
      valid_q <= '0;
      beat_q  <= '0;
    end
  end

  // -- the inverse root: with the last beat of a row it is right ----------------------------------

  // U times the largest power of 4 that keeps it below 2**EVEN_WIDTH: by halves, in three stages.
  // Where U is 0, or below 2**GUARD, all of c is 0.
  localparam int SHIFT_WIDTH = PLACE_WIDTH - 1;
  localparam int LARGEST = 1 << SHIFT_WIDTH;
  localparam logic [SHIFT_WIDTH-1:0] TOP_HALF = SHIFT_WIDTH'((EVEN_WIDTH - 2) / 2);
  localparam logic [SHIFT_WIDTH-1:0] GUARD_HALF = SHIFT_WIDTH'(GUARD / 2);

  logic signed [SUM_WIDTH-1:0] late_sum_q;  // on its way from the accumulator to a multiplier
  logic [SQUARES_WIDTH-1:0] late_squares_q;
  logic [Q_WIDTH-1:0] size_squares_q, squared_sum_q, q_q;
  logic [U_WIDTH-1:0] u_q;
  logic [EVEN_WIDTH-1:0] coarse, middle, fine, coarse_q, middle_q;
  logic [SHIFT_WIDTH-1:0] coarse_up, middle_up, fine_up, coarse_up_q, middle_up_q, fine_up_q;
  logic [17:0] mantissa_0_q, mantissa_1_q, mantissa_2_q, mantissa_3_q, mantissa_4_q, mantissa_5_q;
  logic [15:0] root_0_q, root_1_q, root_2_q, root_3_q, root_4_q, root_5_q, root_6_q;
  logic [17:0] root_squared_q, squared_q;
  logic [35:0] near_one_q;
  logic [19:0] correction_q;
  logic [32:0] r_low_q;
  logic [18:0] r_high_q, r_top_q;
  logic [R_WIDTH-1:0] r_q;
  logic [SHIFT_WIDTH-1:0] half, shift;
  logic [9*SHIFT_WIDTH-1:0] shift_q;
  logic [16*SUM_WIDTH-1:0] sums_q;
  logic [15:0] roots[256];

  initial $readmemh(INIT_FILE, roots);

  always_comb begin
    coarse    = EVEN_WIDTH'(u_q);
    coarse_up = '0;
    if (coarse[EVEN_WIDTH-1-:LARGEST] == '0) begin
      coarse                   = coarse << LARGEST;
      coarse_up[SHIFT_WIDTH-1] = 1'b1;
    end
    middle    = coarse_q;
    middle_up = coarse_up_q;
    for (int level = SHIFT_WIDTH - 2; level > 1; level--) begin
      if ((middle >> (EVEN_WIDTH - (2 << level))) == '0) begin
        middle           = middle << (2 << level);
        middle_up[level] = 1'b1;
      end
    end
    fine    = middle_q;
    fine_up = middle_up_q;
    for (int level = 1; level >= 0; level--) begin
      if ((fine >> (EVEN_WIDTH - (2 << level))) == '0) begin
        fine           = fine << (2 << level);
        fine_up[level] = 1'b1;
      end
    end
  end

  // U = m * 4**half with m from 1 to 4, which is 2 or more where its highest bit is set.
  assign half  = TOP_HALF - fine_up_q;
  assign shift = half >= GUARD_HALF ? half - GUARD_HALF : '0;

  always_ff @(posedge clk) begin
    if (sum_enable) begin
      late_sum_q     <= sum_q;
      late_squares_q <= squares_q;
      size_squares_q <= Q_WIDTH'(late_squares_q) * Q_WIDTH'(SIZE);
      squared_sum_q  <= Q_WIDTH'(late_sum_q) * Q_WIDTH'(late_sum_q);
      q_q            <= size_squares_q - squared_sum_q;
      u_q            <= U_WIDTH'((64'(q_q) << GUARD) + EPS);
      coarse_q       <= coarse;
      coarse_up_q    <= coarse_up;
      middle_q       <= middle;
      middle_up_q    <= middle_up;
      mantissa_0_q   <= fine[EVEN_WIDTH-1-:18];
      fine_up_q      <= fine_up;
      mantissa_1_q   <= mantissa_0_q;
      root_0_q       <=
          roots[{mantissa_0_q[17], mantissa_0_q[17] ? mantissa_0_q[16:10] : mantissa_0_q[15:9]}];
      mantissa_2_q   <= mantissa_1_q;
      root_1_q       <= root_0_q;  // block RAM gives its word late in a cycle,
      mantissa_3_q   <= mantissa_2_q;
      root_2_q       <= root_1_q;  // and the register of a multiplier may be far from it
      mantissa_4_q   <= mantissa_3_q;
      root_3_q       <= root_2_q;
      root_squared_q <= 18'((32'(root_2_q) * 32'(root_2_q)) >> 14);
      mantissa_5_q   <= mantissa_4_q;
      root_4_q       <= root_3_q;
      squared_q      <= root_squared_q;  // on its way from one multiplier to another
      root_5_q       <= root_4_q;
      near_one_q     <= 36'(mantissa_5_q) * 36'(squared_q);
      root_6_q       <= root_5_q;
      correction_q   <= 20'((36'hC_0000_0000 - near_one_q) >> 16);
      r_low_q        <= 33'(root_6_q) * 33'(correction_q[16:0]);
      r_high_q       <= (correction_q[17] ? 19'(root_6_q) : '0)  // few bits: added, not multiplied
          + (correction_q[18] ? 19'(root_6_q) << 1 : '0);
      r_top_q        <= correction_q[19] ? 19'(root_6_q) << 2 : '0;
      r_q            <= R_WIDTH'(r_top_q + r_high_q + 19'(r_low_q >> 17));
      shift_q        <= {shift_q[8*SHIFT_WIDTH-1:0], shift};
      sums_q         <= {sums_q[15*SUM_WIDTH-1:0], sum_q};
    end
  end

  // -- each element -------------------------------------------------------------------------------

  localparam int SCALAR_WIDTH = SUM_WIDTH + R_WIDTH + SHIFT_WIDTH;

  logic [LANES*WIDTH-1:0] row, held;
  logic [SCALAR_WIDTH-1:0] row_scalar;
  logic [SUM_WIDTH-1:0] held_sum;
  logic [R_WIDTH-1:0] held_r, c_r_q;
  logic [SHIFT_WIDTH-1:0] held_shift, c_shift_q, part_shift_q, product_shift_q;
  logic row_valid, row_ready, held_valid, c_valid_q, part_valid_q, product_valid_q;
  logic shifted_valid_q, z_valid_q, parts_valid_q, weighed_valid_q, exact_valid_q;
  logic enable, skid_ready, constants_valid, is_waiting;
  logic [SUM_WIDTH-1:0] late_sum;
  logic [SHIFT_WIDTH-1:0] late_shift;

  assign late_sum   = sums_q[15*SUM_WIDTH+:SUM_WIDTH];
  assign late_shift = shift_q[8*SHIFT_WIDTH+:SHIFT_WIDTH];

  skid_buffer #(
      .DATA_WIDTH(SCALAR_WIDTH + LANES * WIDTH)
  ) u_row_skid (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       ({late_sum, r_q, late_shift, line_q[(DELAY-1)*LANES*WIDTH+:LANES*WIDTH]}),
      .data_in_0_valid (valid_q[DELAY-1]),
      .data_in_0_ready (sum_enable),
      .data_out_0      ({row_scalar, row}),
      .data_out_0_valid(row_valid),
      .data_out_0_ready(row_ready)
  );

  row_buffer #(
      .DATA_WIDTH  (LANES * WIDTH),
      .SCALAR_WIDTH(SCALAR_WIDTH),
      .BEATS       (BEATS)
  ) u_row_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (row),
      .scalar_in       (row_scalar),
      .data_in_0_valid (row_valid),
      .data_in_0_ready (row_ready),
      .enable          (enable),
      .data_out_0      (held),
      .scalar_out      ({held_sum, held_r, held_shift}),
      .data_out_0_valid(held_valid)
  );

  localparam int LOW_WIDTH = 17;
  localparam int HIGH_WIDTH = Z_WIDTH - LOW_WIDTH;
  localparam int PRODUCT_FRAC = 16 + WEIGHT_PRECISION_1;
  localparam bit BIAS_IS_FINER = HAS_BIAS && BIAS_PRECISION_1 > PRODUCT_FRAC;
  localparam int FRAC = BIAS_IS_FINER ? BIAS_PRECISION_1 : PRODUCT_FRAC;
  localparam int W_WIDTH = WEIGHT_PRECISION_0 + (WEIGHT_IS_SIGNED ? 0 : 1);
  localparam int WEIGHED_WIDTH = Z_WIDTH + W_WIDTH + FRAC - PRODUCT_FRAC;
  localparam int BIAS_SHIFT = HAS_BIAS ? FRAC - BIAS_PRECISION_1 : 0;
  localparam int BIAS_WIDTH = BIAS_PRECISION_0 + 1 + BIAS_SHIFT;
  localparam int EXACT_WIDTH = (WEIGHED_WIDTH > BIAS_WIDTH ? WEIGHED_WIDTH : BIAS_WIDTH) + 1;

  logic [LANES*EXACT_WIDTH-1:0] exact_q;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] cast;

  assign constants_valid = weight_valid && (!HAS_BIAS || bias_valid);
  assign is_waiting      = product_valid_q && !constants_valid;
  assign enable          = skid_ready && !is_waiting;
  assign weight_ready    = product_valid_q && skid_ready && (!HAS_BIAS || bias_valid);
  assign bias_ready      = product_valid_q && skid_ready && weight_valid;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_element
    logic signed [C_WIDTH-1:0] x, c_q;
    logic signed [PRODUCT_WIDTH-1:0] part_q, top_q, product_q;
    logic signed [Z_WIDTH-1:0] shifted_q, z_q;  // one more, as the multiplier may be far away
    logic signed [W_WIDTH-1:0] taken_q, w_q;
    // z in two parts that each fit a multiplier of 18 bits; the lower one has no sign.
    logic signed [W_WIDTH+HIGH_WIDTH-1:0] high, high_q, top, top_high_q;
    logic signed [EXACT_WIDTH-1:0] w, low_q, weighed_q;
    logic signed [EXACT_WIDTH-1:0] b, taken_bias_q, z_bias_q, parts_bias_q, bias_q;
    logic sign;
    assign sign = DATA_IN_0_IS_SIGNED && held[lane*WIDTH+WIDTH-1];
    assign x = C_WIDTH'($signed({sign, held[lane*WIDTH+:WIDTH]}));
    assign w = EXACT_WIDTH'(w_q);
    always_comb begin  // few bits are added, not multiplied; the highest one counts -1
      high = '0;
      for (int k = 0; k < HIGH_WIDTH - 1; k++) begin
        if (z_q[LOW_WIDTH+k]) high = high + ((W_WIDTH + HIGH_WIDTH)'(w_q) <<< k);
      end
      top = z_q[Z_WIDTH-1] ? (W_WIDTH + HIGH_WIDTH)'(w_q) <<< (HIGH_WIDTH - 1) : '0;
    end
    if (HAS_BIAS) begin : g_bias
      logic b_sign;
      assign b_sign = BIAS_IS_SIGNED && bias[lane*BIAS_PRECISION_0+BIAS_PRECISION_0-1];
      assign b = EXACT_WIDTH'($signed({b_sign, bias[lane*BIAS_PRECISION_0+:BIAS_PRECISION_0]}))
          <<< BIAS_SHIFT;
    end else begin : g_no_bias
      assign b = '0;
    end
    always_ff @(posedge clk) begin
      if (enable) begin
        c_q          <= x * $signed(C_WIDTH'(SIZE)) - C_WIDTH'($signed(held_sum));
        part_q       <= PRODUCT_WIDTH'(c_q) * PRODUCT_WIDTH'($signed({1'b0, c_r_q[R_WIDTH-2:0]}));
        top_q        <= c_r_q[R_WIDTH-1] ? PRODUCT_WIDTH'(c_q) : '0;
        product_q    <= part_q + (top_q <<< (R_WIDTH - 1));
        shifted_q    <= Z_WIDTH'((product_q >>> 2) >>> product_shift_q);
        z_q          <= shifted_q;
        taken_q      <= W_WIDTH'(weight[lane*WEIGHT_PRECISION_0+:WEIGHT_PRECISION_0]);
        w_q          <= taken_q;
        low_q        <= EXACT_WIDTH'($signed({1'b0, z_q[LOW_WIDTH-1:0]})) * w;
        high_q       <= high;
        top_high_q   <= top;
        weighed_q    <= ((EXACT_WIDTH'(high_q) - EXACT_WIDTH'(top_high_q)) <<< LOW_WIDTH) + low_q;
        taken_bias_q <= b;
        z_bias_q     <= taken_bias_q;
        parts_bias_q <= z_bias_q;
        bias_q       <= parts_bias_q;
        exact_q[lane*EXACT_WIDTH+:EXACT_WIDTH] <= (weighed_q <<< (FRAC - PRODUCT_FRAC)) + bias_q;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (enable) begin
      c_r_q           <= held_r;
      c_shift_q       <= held_shift;
      part_shift_q    <= c_shift_q;
      product_shift_q <= part_shift_q;
      c_valid_q       <= held_valid;
      part_valid_q    <= c_valid_q;
      product_valid_q <= part_valid_q;
      shifted_valid_q <= product_valid_q;
      z_valid_q       <= shifted_valid_q;
      parts_valid_q   <= z_valid_q;
      weighed_valid_q <= parts_valid_q;
      exact_valid_q   <= weighed_valid_q;
    end
    if (rst) begin
      c_valid_q       <= 1'b0;
      part_valid_q    <= 1'b0;
      product_valid_q <= 1'b0;
      shifted_valid_q <= 1'b0;
      z_valid_q       <= 1'b0;
      parts_valid_q   <= 1'b0;
      weighed_valid_q <= 1'b0;
      exact_valid_q   <= 1'b0;
    end
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (EXACT_WIDTH),
      .DATA_IN_0_PRECISION_1      (FRAC),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (exact_q),
      .data_out_0(cast)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (cast),
      .data_in_0_valid (exact_valid_q && !is_waiting),
      .data_in_0_ready (skid_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  wire logic unused_ok = &{1'b0, fine, r_low_q};
  if (!HAS_BIAS) begin : g_unused_bias
    wire logic unused_bias = &{1'b0, bias, bias_valid, 32'(BIAS_PRECISION_1), BIAS_IS_SIGNED};
  end

endmodule

`default_nettype wire
