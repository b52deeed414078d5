// Divides every lane by a positive constant, or by one of a few that is chosen while it runs, and
// casts the exact quotient to the output format. Enable-gated pipeline, latency 2 enabled cycles: the
// dividend and its product with a reciprocal are registers. With HAS_PARTS it is 3: the product is the
// sum of products that each fit a multiplier block, and these are registers, too. The quotient goes
// to fixed_cast with one bit below the half-step and a sticky bit that says "and a remainder":
// rounding needs no more.
`default_nettype none

module fixed_divide #(
    parameter int DATA_IN_0_PRECISION_0       = 12,    // width of a signed dividend, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 4,     // its fractional bits
    parameter int DIVISOR                     = 6,     // 1 or more
    parameter bit IS_CHOSEN                   = 1'b0,  // 1: by `divisor`, from 1 to DIVISOR
    parameter bit HAS_PARTS                   = 1'b0,  // for products wider than a multiplier block
    parameter int PART                        = 18,    // bits of an operand of a block, 1 or more
    parameter int DATA_OUT_0_PRECISION_0      = 8,     // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,     // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,     // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,     // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1      // elements per beat, 1 or more
) (
    input  wire logic clk,
    input  wire logic enable,
    input  wire logic [$clog2(DIVISOR+1)-1:0] divisor,  // where it is chosen
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    output logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DIVISOR < 1 || PART < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_divide: width, DIVISOR, PART and lanes must be 1 or more, got %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DIVISOR, PART, DATA_IN_0_PARALLELISM_DIM_0);
  end
`endif

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  // Bring the quotient to one fractional bit more than the output has: shift the dividend. Bits
  // that fall out below only matter as "and a remainder".
  localparam int SHIFT = DATA_OUT_0_PRECISION_1 + 1 - DATA_IN_0_PRECISION_1;
  localparam int GAINED = SHIFT > 0 ? SHIFT : 0;
  localparam int LOST = SHIFT < 0 ? -SHIFT : 0;
  localparam int DROPPED = LOST > IN_WIDTH ? IN_WIDTH : LOST;
  localparam int SCALED_WIDTH = DROPPED < IN_WIDTH ? IN_WIDTH + GAINED - DROPPED : 1;
  localparam int DIVISOR_BITS = $clog2(DIVISOR + 1);
  // A multiple of the divisor makes every dividend non-negative: floor is then a plain shift.
  localparam int OFFSET_BITS = SCALED_WIDTH;
  localparam int RAISED_WIDTH = OFFSET_BITS + DIVISOR_BITS + 1;
  localparam logic [RAISED_WIDTH-1:0] OFFSET = RAISED_WIDTH'(DIVISOR) << OFFSET_BITS;
  // n * ceil(2**K / d) >> K = n / d for every n below 2**(K - bits of d)
  localparam int K = RAISED_WIDTH + DIVISOR_BITS;
  localparam int RECIPROCAL_WIDTH = K + 2;  // and a sign: constants are signed
  localparam logic [RECIPROCAL_WIDTH-1:0] D = RECIPROCAL_WIDTH'(DIVISOR);
  localparam logic [RECIPROCAL_WIDTH-1:0] RECIPROCAL =
      ((RECIPROCAL_WIDTH'(1) << K) + D - RECIPROCAL_WIDTH'(1)) / D;
  localparam int PRODUCT_WIDTH = RAISED_WIDTH + RECIPROCAL_WIDTH;
  localparam int QUOTIENT_WIDTH = OFFSET_BITS + 2;
  localparam int LATENCY = HAS_PARTS ? 3 : 2;
  localparam int DIVIDEND_PARTS = (RAISED_WIDTH + PART - 2) / PART;  // its highest bit is always 0
  localparam int RECIPROCAL_PARTS = (RECIPROCAL_WIDTH + PART - 1) / PART;
  // Zeros at the end of a constant take no block.
  localparam logic [RECIPROCAL_WIDTH-1:0] LOWEST = RECIPROCAL & (~RECIPROCAL + 1'b1);
  localparam int ZEROS = IS_CHOSEN ? 0 : $clog2(LOWEST);

  logic [(DIVISOR+1)*RECIPROCAL_WIDTH-1:0] reciprocals;  // of every divisor that may be chosen
  if (IS_CHOSEN) begin : g_table
    assign reciprocals[0+:RECIPROCAL_WIDTH] = '0;
    for (genvar each = 1; each <= DIVISOR; each++) begin : g_each
      localparam logic [RECIPROCAL_WIDTH-1:0] EACH = RECIPROCAL_WIDTH'(each);
      assign reciprocals[each*RECIPROCAL_WIDTH+:RECIPROCAL_WIDTH] =
          ((RECIPROCAL_WIDTH'(1) << K) + EACH - RECIPROCAL_WIDTH'(1)) / EACH;
    end
  end else begin : g_no_table
    wire logic unused_ok = &{1'b0, divisor, reciprocals};
    assign reciprocals = '0;
  end

  logic [DATA_IN_0_PARALLELISM_DIM_0*(QUOTIENT_WIDTH+1)-1:0] quotients;

  for (genvar lane = 0; lane < DATA_IN_0_PARALLELISM_DIM_0; lane++) begin : g_lane
    logic signed [IN_WIDTH+GAINED-1:0] shifted;
    logic signed [SCALED_WIDTH-1:0] scaled;
    logic [RAISED_WIDTH-1:0] raised_q;
    logic [PRODUCT_WIDTH-1:0] product_q;
    logic [RAISED_WIDTH-1:0] floor_raised;
    logic has_lost, has_remainder;
    logic [LATENCY-1:0] has_lost_q;
    logic [RECIPROCAL_WIDTH-1:0] factor;

    assign shifted = (IN_WIDTH + GAINED)'($signed(data_in_0[lane*IN_WIDTH+:IN_WIDTH])) <<< GAINED;
    if (DROPPED > 0) begin : g_lost
      assign has_lost = shifted[DROPPED-1:0] != '0;
    end else begin : g_whole
      assign has_lost = 1'b0;
    end
    assign scaled = SCALED_WIDTH'(shifted >>> DROPPED);
    if (IS_CHOSEN) begin : g_chosen
      logic [RECIPROCAL_WIDTH-1:0] reciprocal_q;
      always_ff @(posedge clk) begin
        if (enable) begin
          reciprocal_q <= reciprocals[32'(divisor)*RECIPROCAL_WIDTH+:RECIPROCAL_WIDTH];
          raised_q     <= RAISED_WIDTH'(scaled) + (RAISED_WIDTH'(divisor) << OFFSET_BITS);
        end
      end
      assign factor = reciprocal_q;
    end else begin : g_constant
      always_ff @(posedge clk) if (enable) raised_q <= RAISED_WIDTH'(scaled) + OFFSET;
      assign factor = RECIPROCAL;
    end

    if (HAS_PARTS) begin : g_parts
      logic [DIVIDEND_PARTS*PART-1:0] dividend;
      logic [RECIPROCAL_PARTS*PART-1:0] reciprocal;
      logic [DIVIDEND_PARTS*RECIPROCAL_PARTS*2*PART-1:0] parts_q;
      logic [PRODUCT_WIDTH-1:0] sum;
      wire logic unused_ok = &{1'b0, raised_q[RAISED_WIDTH-1]};
      assign dividend   = (DIVIDEND_PARTS * PART)'(raised_q[RAISED_WIDTH-2:0]);
      assign reciprocal = (RECIPROCAL_PARTS * PART)'(factor >> ZEROS);
      for (genvar a = 0; a < DIVIDEND_PARTS; a++) begin : g_dividend
        for (genvar b = 0; b < RECIPROCAL_PARTS; b++) begin : g_reciprocal
          always_ff @(posedge clk) begin
            if (enable) begin
              parts_q[(a*RECIPROCAL_PARTS+b)*2*PART+:2*PART] <=
                  (2 * PART)'(dividend[a*PART+:PART]) * (2 * PART)'(reciprocal[b*PART+:PART]);
            end
          end
        end
      end
      always_comb begin
        sum = '0;
        for (int a = 0; a < DIVIDEND_PARTS; a++) begin
          for (int b = 0; b < RECIPROCAL_PARTS; b++) begin
            sum = sum + (PRODUCT_WIDTH'(parts_q[(a*RECIPROCAL_PARTS+b)*2*PART+:2*PART])
                << ((a + b) * PART));
          end
        end
      end
      always_ff @(posedge clk) if (enable) product_q <= sum << ZEROS;
    end else begin : g_one_product
      always_ff @(posedge clk) begin
        if (enable) product_q <= PRODUCT_WIDTH'(raised_q) * PRODUCT_WIDTH'(factor);
      end
    end
    always_ff @(posedge clk) if (enable) has_lost_q <= LATENCY'({has_lost_q, has_lost});

    // Of n = q d + r the product is q 2**K + r 2**K / d + n e / d with e below d: the part below 2**K
    // is below n where r = 0, else above 2**K / d, so its highest bits tell the two apart.
    assign floor_raised  = RAISED_WIDTH'(product_q >> K);
    assign has_remainder = product_q[K-1-:DIVISOR_BITS] != '0;
    assign quotients[lane*(QUOTIENT_WIDTH+1)+:QUOTIENT_WIDTH+1] = {
      QUOTIENT_WIDTH'(floor_raised - (RAISED_WIDTH'(1) << OFFSET_BITS)),
      has_remainder || has_lost_q[LATENCY-1]
    };
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (QUOTIENT_WIDTH + 1),
      .DATA_IN_0_PRECISION_1      (DATA_OUT_0_PRECISION_1 + 2),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(DATA_IN_0_PARALLELISM_DIM_0)
  ) u_fixed_cast (
      .data_in_0 (quotients),
      .data_out_0(data_out_0)
  );

endmodule

`default_nettype wire
