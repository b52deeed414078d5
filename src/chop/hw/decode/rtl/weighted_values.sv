// Values of the cache, weighted by the softmax of their scores.
//
//     e = 65535 * exp(score - largest), by the product of two tables
//     sums = sum(e * value); result = sums * (2**33 / sum(e)), rounded to 16 bits
//
// A row begins with its header; its beats follow. The score comes one cycle after the header.
// `finish` is raised 20 cycles after the last beat or later. Then 1 result leaves per cycle.
`default_nettype none

module weighted_values #(
    parameter int DATA_WIDTH      = 128,               // bits of a beat, 8 for each value
    parameter int HEAD_DIM        = 64,                // values of a row
    parameter     EXP_FILE        = "exp.mem",         // 256 words of 16 bits
    parameter     FINE_FILE       = "fine.mem",        // 256 words of 17 bits
    parameter     RECIPROCAL_FILE = "reciprocal.mem"   // 256 words of 16 bits
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic                  clear,         // before the first row
    input  wire logic                  header_valid,
    input  wire logic signed    [15:0] score,         // one cycle after the header
    input  wire logic signed    [15:0] largest,
    input  wire logic [DATA_WIDTH-1:0] beat,
    input  wire logic                  beat_valid,
    input  wire logic            [3:0] beat_exponent,
    input  wire logic                  finish,
    input  wire logic            [5:0] shift,
    output      logic signed    [15:0] result,
    output      logic                  result_valid,
    output      logic                  is_busy
);

  localparam int LANES = DATA_WIDTH / 8;
  localparam int BEATS = HEAD_DIM / LANES;
  localparam int BEAT_BITS = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int INDEX = $clog2(HEAD_DIM);
  localparam int SUM_WIDTH = 48;  // 16384 rows, 16 bits of e, 17 bits of a value
  localparam int DELAY = 4;       // from a beat to its product

  // -- exponentials ---------------------------------------------------------------------------

  logic [15:0] coarse_entries[256];
  logic [16:0] fine_entries[256];
  logic [15:0] reciprocals[256];
  logic [15:0] distance_q, coarse_q, e_q;
  logic [16:0] fine_q;
  logic [32:0] product_q;
  logic [3:0] header_q;
  logic [32:0] total_q;

  initial $readmemh(EXP_FILE, coarse_entries);
  initial $readmemh(FINE_FILE, fine_entries);
  initial $readmemh(RECIPROCAL_FILE, reciprocals);

  always_ff @(posedge clk) begin
    header_q   <= {header_q[2:0], header_valid};
    distance_q <= 16'(largest - score);
    coarse_q   <= coarse_entries[distance_q[15:8]];
    fine_q     <= fine_entries[distance_q[7:0]];
    product_q  <= 33'(coarse_q) * 33'(fine_q) + 33'h8000;
    if (header_q[3]) begin
      e_q     <= product_q[31:16];
      total_q <= total_q + 33'(product_q[31:16]);
    end
    if (clear) total_q <= '0;
    if (rst) header_q <= '0;
  end

  // -- sums -----------------------------------------------------------------------------------

  logic [DATA_WIDTH-1:0] beats_q[DELAY];
  logic [3:0] exponents_q[DELAY+1];
  logic [DELAY+1:0] valid_q;
  logic signed [24:0] weighted_q[LANES];
  logic signed [33:0] shifted_q[LANES];
  logic signed [SUM_WIDTH-1:0] sums_q[HEAD_DIM];
  logic [BEAT_BITS-1:0] beat_index_q;

  always_ff @(posedge clk) begin
    beats_q[0]     <= beat;
    exponents_q[0] <= beat_exponent;
    for (int i = 1; i < DELAY; i++) beats_q[i] <= beats_q[i-1];
    for (int i = 1; i <= DELAY; i++) exponents_q[i] <= exponents_q[i-1];
    valid_q <= {valid_q[DELAY:0], beat_valid};
    for (int lane = 0; lane < LANES; lane++) begin
      weighted_q[lane] <= $signed({9'd0, e_q}) * 25'($signed(beats_q[DELAY-1][lane*8+:8]));
      shifted_q[lane]  <= 34'(weighted_q[lane]) <<< exponents_q[DELAY];
    end
    if (valid_q[DELAY+1]) begin
      beat_index_q <= beat_index_q == BEAT_BITS'(BEATS - 1) ? '0 : beat_index_q + 1'b1;
      for (int lane = 0; lane < LANES; lane++) begin
        sums_q[INDEX'(beat_index_q) * INDEX'(LANES) + INDEX'(lane)] <=
            sums_q[INDEX'(beat_index_q) * INDEX'(LANES) + INDEX'(lane)]
            + SUM_WIDTH'(shifted_q[lane]);
      end
    end
    if (clear) for (int i = 0; i < HEAD_DIM; i++) sums_q[i] <= '0;
    if (rst || clear) beat_index_q <= '0;
    if (rst) valid_q <= '0;
  end

  // -- the reciprocal of the total, and the results -------------------------------------------

  logic [5:0] place, place_q;
  logic [2:0] upper_q;
  logic [63:0] rest;
  logic [7:0] part, part_q;
  logic [16:0] mantissa_q;
  logic [15:0] r_q;
  logic [33:0] near_one_q;
  logic [17:0] correction_q, reciprocal_q;
  logic [33:0] inverse_q;
  logic [INDEX-1:0] index_q;
  logic finishing_q, sum_valid_q, scaled_valid_q;
  logic signed [SUM_WIDTH-1:0] sum_q;
  logic signed [63:0] scaled_q;

  always_comb begin
    rest = 64'(total_q);
    part = part_q;
    for (int level = 5; level >= 3; level--) begin  // the highest bit, by halves
      place[level] = (rest >> (1 << level)) != '0;
      if (place[level]) rest = rest >> (1 << level);
    end
    for (int level = 2; level >= 0; level--) begin  // one cycle later
      place[level] = (part >> (1 << level)) != '0;
      if (place[level]) part = part >> (1 << level);
    end
  end

  always_ff @(posedge clk) begin
    upper_q      <= place[5:3];
    part_q       <= rest[7:0];
    place_q      <= {upper_q, place[2:0]};
    mantissa_q   <= 17'({total_q, 16'd0} >> place_q);
    r_q          <= reciprocals[mantissa_q[15:8]];
    near_one_q   <= 34'(mantissa_q) * 34'(r_q);
    correction_q <= 18'((34'h2_0000_0000 - near_one_q) >> 15);
    inverse_q    <= 34'(r_q) * 34'(correction_q);
    reciprocal_q <= 18'(inverse_q >> place_q);
    finishing_q  <= finish || (finishing_q && index_q != INDEX'(HEAD_DIM - 1));
    if (finishing_q) index_q <= index_q == INDEX'(HEAD_DIM - 1) ? '0 : index_q + 1'b1;
    sum_q          <= sums_q[index_q];
    sum_valid_q    <= finishing_q;
    scaled_q       <= 64'(sum_q) * $signed({46'd0, reciprocal_q});
    scaled_valid_q <= sum_valid_q;
    if (rst) begin
      finishing_q    <= 1'b0;
      index_q        <= '0;
      sum_valid_q    <= 1'b0;
      scaled_valid_q <= 1'b0;
    end
  end

  shift_cast #(
      .IN_WIDTH(64)
  ) u_cast (
      .clk           (clk),
      .rst           (rst),
      .data_in       (scaled_q),
      .shift         (shift),
      .data_in_valid (scaled_valid_q),
      .data_out      (result),
      .data_out_valid(result_valid)
  );

  assign is_busy = header_q != '0 || valid_q != '0 || finishing_q || sum_valid_q || scaled_valid_q
      || result_valid;

  wire logic unused_ok = &{1'b0, product_q[32], product_q[15:0]};

endmodule

`default_nettype wire
