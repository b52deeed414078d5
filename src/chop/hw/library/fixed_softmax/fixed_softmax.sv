// Softmax of rows: e = 65535 * exp(x - max(x)) by table, then e * (2**33 / sum(e)), cast.
// Masked elements take no part and give 0; so does a row that is masked whole.
// Rows overlap: SIZE / lanes cycles for each. Latency: two rows and 25 cycles (26 with two tables).
// Block RAM gives its word late in a cycle: tables are registered once more.
`default_nettype none

module fixed_softmax #(
    parameter int DATA_IN_0_PRECISION_0       = 8,     // width of an input element, 1 to 16 bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0 = 8,     // elements of a row, up to 16384
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 2,     // elements per beat; divides the row
    parameter bit HAS_MASK                    = 1'b0,  // 0: data_in_1 is not used
    parameter bit IS_MASK_KEPT                = 1'b1,  // what 1 says: 1 takes part, 0 is masked
    // 0: one table, its last entry for all larger differences; 1: one for the high 8 bits of a
    // difference and one for the low
    parameter bit HAS_TWO_TABLES              = 1'b0,
    parameter int DATA_OUT_0_PRECISION_0      = 8,     // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 7,     // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,     // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,     // as in fixed_cast
    parameter     EXP_INIT_FILE               = "exp.mem",         // 256 words of 16 bits
    parameter     FINE_INIT_FILE              = "fine.mem",        // 256 words of 17 bits
    parameter     RECIPROCAL_INIT_FILE        = "reciprocal.mem"   // 256 words of 16 bits
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0-1:0] data_in_1,  // the mask
    input  wire logic data_in_1_valid,
    output      logic data_in_1_ready,

    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PRECISION_0 > 16
      || DATA_OUT_0_PRECISION_0 < 1) begin : g_refuse_width
    $error("fixed_softmax: an input has 1 to 16 bits, an output 1 or more, got %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_OUT_0_PRECISION_0);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1 || DATA_IN_0_TENSOR_SIZE_DIM_0 > 16384
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_size
    $error("fixed_softmax: the parallelism must divide a row of up to 16384, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
`endif

  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int SIZE = DATA_IN_0_TENSOR_SIZE_DIM_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int BEATS = SIZE / LANES;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int EXP_WIDTH = 16;
  localparam int SUM_WIDTH = EXP_WIDTH + $clog2(SIZE);  // SIZE * 65535 is below 2**16 * SIZE
  localparam int PLACE_WIDTH = $clog2(SUM_WIDTH);
  localparam int R_WIDTH = 18;  // a sum is 65535 or more: 2**33 / 65535 needs 18 bits
  localparam int PRODUCT_WIDTH = EXP_WIDTH + R_WIDTH;
  localparam int PRODUCT_FRAC = 33;

  // -- the largest element of each row ------------------------------------------------------------

  // Elements as unsigned numbers of the same order; differences stay what they are.
  logic [LANES*WIDTH-1:0] keys, largest, keys_1_q, keys_2_q, row_keys, held_keys;
  logic [LANES-1:0] keep, keep_1_q, keep_2_q, row_keep, held_keep;
  logic [WIDTH-1:0] beat_max, beat_max_q, max_q, row_max, held_max;
  logic [BEAT_WIDTH-1:0] max_beat_q;
  logic max_enable, max_load, max_first_q, max_1_valid_q, max_2_valid_q;
  logic row_keys_valid, row_keys_ready, held_valid, exp_enable;

  assign keep            = !HAS_MASK ? '1 : IS_MASK_KEPT ? data_in_1 : ~data_in_1;
  assign max_load        = data_in_0_valid && data_in_0_ready;
  assign data_in_0_ready = max_enable && (!HAS_MASK || data_in_1_valid);
  assign data_in_1_ready = max_enable && data_in_0_valid;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_key
    assign keys[lane*WIDTH+:WIDTH] =
        data_in_0[lane*WIDTH+:WIDTH] ^ (WIDTH'(DATA_IN_0_IS_SIGNED) << (WIDTH - 1));
  end

  always_comb begin  // the larger of two, of four, ...
    largest = '0;
    for (int lane = 0; lane < LANES; lane++) begin
      if (keep[lane]) largest[lane*WIDTH+:WIDTH] = keys[lane*WIDTH+:WIDTH];
    end
    for (int step = 1; step < LANES; step *= 2) begin
      for (int lane = 0; lane + step < LANES; lane += 2 * step) begin
        if (largest[(lane+step)*WIDTH+:WIDTH] > largest[lane*WIDTH+:WIDTH]) begin
          largest[lane*WIDTH+:WIDTH] = largest[(lane+step)*WIDTH+:WIDTH];
        end
      end
    end
    beat_max = largest[WIDTH-1:0];
  end

  always_ff @(posedge clk) begin
    if (max_load) begin
      max_beat_q <= max_beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : max_beat_q + 1'b1;
    end
    if (max_enable) begin
      keys_1_q      <= keys;
      keep_1_q      <= keep;
      beat_max_q    <= beat_max;
      max_first_q   <= max_beat_q == '0;
      max_1_valid_q <= max_load;
      keys_2_q      <= keys_1_q;
      keep_2_q      <= keep_1_q;
      max_2_valid_q <= max_1_valid_q;
      if (max_1_valid_q && (max_first_q || beat_max_q > max_q)) max_q <= beat_max_q;
    end
    if (rst) begin
      max_beat_q    <= '0;
      max_1_valid_q <= 1'b0;
      max_2_valid_q <= 1'b0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(LANES * (WIDTH + 1) + WIDTH)
  ) u_keys_skid (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       ({max_q, keep_2_q, keys_2_q}),
      .data_in_0_valid (max_2_valid_q),
      .data_in_0_ready (max_enable),
      .data_out_0      ({row_max, row_keep, row_keys}),
      .data_out_0_valid(row_keys_valid),
      .data_out_0_ready(row_keys_ready)
  );

  row_buffer #(
      .DATA_WIDTH  (LANES * (WIDTH + 1)),
      .SCALAR_WIDTH(WIDTH),
      .BEATS       (BEATS)
  ) u_keys (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       ({row_keep, row_keys}),
      .scalar_in       (row_max),
      .data_in_0_valid (row_keys_valid),
      .data_in_0_ready (row_keys_ready),
      .enable          (exp_enable),
      .data_out_0      ({held_keep, held_keys}),
      .scalar_out      (held_max),
      .data_out_0_valid(held_valid)
  );

  // -- exponentials -------------------------------------------------------------------------------

  logic [LANES*EXP_WIDTH-1:0] exps;
  logic [LANES-1:0] far_keep_q, read_keep_q, late_keep_q;
  logic far_valid_q, read_valid_q, late_valid_q, exps_valid;
  logic [15:0] entries[256];

  initial $readmemh(EXP_INIT_FILE, entries);

  always_ff @(posedge clk) begin
    if (exp_enable) begin
      far_keep_q   <= held_keep;
      read_keep_q  <= far_keep_q;
      late_keep_q  <= read_keep_q;
      far_valid_q  <= held_valid;
      read_valid_q <= far_valid_q;
      late_valid_q <= read_valid_q;
    end
    if (rst) begin
      far_valid_q  <= 1'b0;
      read_valid_q <= 1'b0;
      late_valid_q <= 1'b0;
    end
  end

  if (HAS_TWO_TABLES) begin : g_two
    logic [16:0] fine_entries[256];
    logic [LANES-1:0] product_keep_q;
    logic product_valid_q;
    initial $readmemh(FINE_INIT_FILE, fine_entries);
    for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
      logic [15:0] far_q;
      logic [15:0] coarse_q, late_coarse_q;
      logic [16:0] fine_q, late_fine_q;
      logic [32:0] product_q;
      always_ff @(posedge clk) begin
        if (exp_enable) begin
          far_q         <= 16'(held_max) - 16'(held_keys[lane*WIDTH+:WIDTH]);
          coarse_q      <= entries[far_q[15:8]];
          fine_q        <= fine_entries[far_q[7:0]];
          late_coarse_q <= coarse_q;
          late_fine_q   <= fine_q;
          product_q     <= 33'(late_coarse_q) * 33'(late_fine_q) + 33'h8000;
        end
      end
      assign exps[lane*EXP_WIDTH+:EXP_WIDTH] = product_keep_q[lane] ? product_q[31:16] : '0;
      wire logic unused_ok = &{1'b0, product_q[32], product_q[15:0]};
    end
    always_ff @(posedge clk) begin
      if (exp_enable) begin
        product_keep_q  <= late_keep_q;
        product_valid_q <= late_valid_q;
      end
      if (rst) product_valid_q <= 1'b0;
    end
    assign exps_valid = product_valid_q;
  end else begin : g_one
    for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
      logic [15:0] far;
      logic [7:0] far_q;
      logic [15:0] entry_q, late_entry_q;
      assign far = 16'(held_max) - 16'(held_keys[lane*WIDTH+:WIDTH]);
      always_ff @(posedge clk) begin
        if (exp_enable) begin
          far_q        <= far[15:8] == '0 ? far[7:0] : '1;
          entry_q      <= entries[far_q];
          late_entry_q <= entry_q;
        end
      end
      assign exps[lane*EXP_WIDTH+:EXP_WIDTH] = late_keep_q[lane] ? late_entry_q : '0;
    end
    assign exps_valid = late_valid_q;
    wire logic unused_ok = &{1'b0, FINE_INIT_FILE == ""};
  end

  // -- the reciprocal of each row's sum: with the last beat of a row it is right ------------------

  localparam int DELAY = 13;  // registers from the exponentials to the reciprocal

  logic [SUM_WIDTH-1:0] beat_sum, beat_sum_q, sum_q;
  logic [BEAT_WIDTH-1:0] sum_beat_q;
  logic [DELAY*LANES*EXP_WIDTH-1:0] exps_q;
  logic [DELAY-1:0] exps_valid_q;
  logic sum_first_q;

  always_comb begin
    beat_sum = '0;
    for (int lane = 0; lane < LANES; lane++) begin
      beat_sum = beat_sum + SUM_WIDTH'(exps[lane*EXP_WIDTH+:EXP_WIDTH]);
    end
  end

  always_ff @(posedge clk) begin
    if (exp_enable) begin
      exps_q       <= {exps_q[(DELAY-1)*LANES*EXP_WIDTH-1:0], exps};
      exps_valid_q <= {exps_valid_q[DELAY-2:0], exps_valid};
      beat_sum_q   <= beat_sum;
      sum_first_q  <= sum_beat_q == '0;
      if (exps_valid) begin
        sum_beat_q <= sum_beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : sum_beat_q + 1'b1;
      end
      if (exps_valid_q[0]) sum_q <= sum_first_q ? beat_sum_q : sum_q + beat_sum_q;
    end
    if (rst) begin
      sum_beat_q   <= '0;
      exps_valid_q <= '0;
    end
  end

  // sum = m * 2**place, m from 1 to 2 with 16 fractional bits; r = 1 / m by table, then Newton.
  // A sum of 0 has no reciprocal, and no element that asks for it: all of the row is 0.
  logic [PLACE_WIDTH-1:0] place;
  logic [10*PLACE_WIDTH-1:0] places_q;
  logic [SUM_WIDTH-1:0] late_sum_q;
  logic [(1<<PLACE_WIDTH)-1:0] rest;
  logic [16:0] mantissa_0_q, mantissa_1_q, mantissa_2_q, mantissa_3_q;
  logic [15:0] r_0_q, r_1_q, r_2_q, r_3_q, r_4_q, r_5_q;
  logic [33:0] near_one_q, late_one_q, unshifted_q, late_unshifted_q;
  logic [17:0] correction_q;
  logic [R_WIDTH-1:0] reciprocal_q;
  logic [15:0] reciprocals[256];

  initial $readmemh(RECIPROCAL_INIT_FILE, reciprocals);

  always_comb begin
    rest = (1 << PLACE_WIDTH)'(sum_q);
    for (int level = PLACE_WIDTH - 1; level >= 0; level--) begin  // the highest bit, by halves
      place[level] = (rest >> (1 << level)) != '0;
      if (place[level]) rest = rest >> (1 << level);
    end
  end

  always_ff @(posedge clk) begin
    if (exp_enable) begin
      places_q         <= {places_q[9*PLACE_WIDTH-1:0], place};
      late_sum_q       <= sum_q;
      mantissa_0_q     <= 17'({late_sum_q, 16'd0} >> places_q[PLACE_WIDTH-1:0]);
      mantissa_1_q     <= mantissa_0_q;
      r_0_q            <= reciprocals[mantissa_0_q[15:8]];
      mantissa_2_q     <= mantissa_1_q;
      r_1_q            <= r_0_q;
      mantissa_3_q     <= mantissa_2_q;
      r_2_q            <= r_1_q;  // the register of the multiplier may be far from block RAM
      near_one_q       <= 34'(mantissa_3_q) * 34'(r_2_q);
      r_3_q            <= r_2_q;
      late_one_q       <= near_one_q;  // and the subtraction far from the multiplier
      r_4_q            <= r_3_q;
      correction_q     <= 18'((34'h2_0000_0000 - late_one_q) >> 15);
      r_5_q            <= r_4_q;
      unshifted_q      <= 34'(r_5_q) * 34'(correction_q);
      late_unshifted_q <= unshifted_q;
      reciprocal_q     <= R_WIDTH'(late_unshifted_q >> places_q[9*PLACE_WIDTH+:PLACE_WIDTH]);
    end
  end

  logic [LANES*EXP_WIDTH-1:0] row_exps, held_exps;
  logic [R_WIDTH-1:0] row_reciprocal, held_reciprocal;
  logic row_exps_valid, row_exps_ready, held_exps_valid, out_enable;
  logic products_valid_q, late_products_valid_q;
  logic [LANES*PRODUCT_WIDTH-1:0] products_q, late_products_q;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] cast;

  skid_buffer #(
      .DATA_WIDTH(LANES * EXP_WIDTH + R_WIDTH)
  ) u_exps_skid (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       ({reciprocal_q, exps_q[(DELAY-1)*LANES*EXP_WIDTH+:LANES*EXP_WIDTH]}),
      .data_in_0_valid (exps_valid_q[DELAY-1]),
      .data_in_0_ready (exp_enable),
      .data_out_0      ({row_reciprocal, row_exps}),
      .data_out_0_valid(row_exps_valid),
      .data_out_0_ready(row_exps_ready)
  );

  row_buffer #(
      .DATA_WIDTH  (LANES * EXP_WIDTH),
      .SCALAR_WIDTH(R_WIDTH),
      .BEATS       (BEATS)
  ) u_exps (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (row_exps),
      .scalar_in       (row_reciprocal),
      .data_in_0_valid (row_exps_valid),
      .data_in_0_ready (row_exps_ready),
      .enable          (out_enable),
      .data_out_0      (held_exps),
      .scalar_out      (held_reciprocal),
      .data_out_0_valid(held_exps_valid)
  );

  always_ff @(posedge clk) begin
    if (out_enable) begin
      for (int lane = 0; lane < LANES; lane++) begin
        products_q[lane*PRODUCT_WIDTH+:PRODUCT_WIDTH] <=
            PRODUCT_WIDTH'(held_exps[lane*EXP_WIDTH+:EXP_WIDTH]) * PRODUCT_WIDTH'(held_reciprocal);
      end
      products_valid_q      <= held_exps_valid;
      late_products_q       <= products_q;
      late_products_valid_q <= products_valid_q;
    end
    if (rst) begin
      products_valid_q      <= 1'b0;
      late_products_valid_q <= 1'b0;
    end
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (PRODUCT_WIDTH),
      .DATA_IN_0_PRECISION_1      (PRODUCT_FRAC),
      .DATA_IN_0_IS_SIGNED        (1'b0),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (late_products_q),
      .data_out_0(cast)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (cast),
      .data_in_0_valid (late_products_valid_q),
      .data_in_0_ready (out_enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  if (!HAS_MASK) begin : g_unused_mask
    wire logic unused_mask = &{1'b0, data_in_1, data_in_1_valid};
  end

endmodule

`default_nettype wire
