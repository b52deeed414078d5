// Values of the cache, weighted by the softmax of their scores.
//
//     e = 65535 * exp(score - largest), by the product of two tables
//     sums = sum(e * value); result = sums * (2**33 / sum(e)), rounded to 16 bits
//
// A row begins with its header; its beats follow. The score comes one cycle after the header.
// `finish` is raised 24 cycles after the last beat or later. Then 1 result leaves per cycle.
`default_nettype none

module weighted_values #(
    parameter int DATA_WIDTH      = 128,               // bits of a beat
    parameter int VALUE_WIDTH     = 8,                 // bits of the mantissa of a value
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

  localparam int LANES = DATA_WIDTH / VALUE_WIDTH;
  localparam int BEATS = HEAD_DIM / LANES;
  localparam int BEAT_BITS = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int INDEX = $clog2(HEAD_DIM);
  localparam int SUM_WIDTH = 48;  // 16384 rows, 16 bits of e, 17 bits of a value
  localparam int DELAY = 6;       // from a beat to its product

  // -- exponentials ---------------------------------------------------------------------------

  logic [15:0] coarse_entries[256];
  logic [16:0] fine_entries[256];
  logic [15:0] reciprocals[256];
  logic [15:0] distance_q, coarse_q, coarse_2_q, e_q;
  logic [16:0] fine_q, fine_2_q;
  logic [32:0] product_q, rounded_q;
  logic [5:0] header_q;
  logic [32:0] total_q;

  initial $readmemh(EXP_FILE, coarse_entries);
  initial $readmemh(FINE_FILE, fine_entries);
  initial $readmemh(RECIPROCAL_FILE, reciprocals);

  always_ff @(posedge clk) begin
    header_q   <= {header_q[4:0], header_valid};
    distance_q <= 16'(largest - score);
    coarse_q   <= coarse_entries[distance_q[15:8]];
    fine_q     <= fine_entries[distance_q[7:0]];
    coarse_2_q <= coarse_q;
    fine_2_q   <= fine_q;
    product_q  <= 33'(coarse_2_q) * 33'(fine_2_q);
    rounded_q  <= product_q + 33'h8000;
    if (header_q[5]) begin
      e_q     <= rounded_q[31:16];
      total_q <= total_q + 33'(rounded_q[31:16]);
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
      weighted_q[lane] <= $signed({9'd0, e_q}) *
          25'($signed(beats_q[DELAY-1][lane*VALUE_WIDTH+:VALUE_WIDTH]));
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

  localparam int LANE_BITS = LANES > 1 ? $clog2(LANES) : 1;

  logic [5:0] place;
  logic [16:0] mantissa_q;
  logic [15:0] entry_q, r_q;
  logic [33:0] near_one_q;
  logic [17:0] correction_q, reciprocal_q;
  logic [33:0] inverse_q;
  logic [INDEX-1:0] index_q;
  logic [BEAT_BITS-1:0] beat_1_q;
  logic finishing_q;
  logic [4:0] sum_valid_q;
  logic signed [SUM_WIDTH-1:0] lane_sums_q[BEATS];  // of one lane
  logic signed [SUM_WIDTH-1:0] sum_q;
  logic signed [SUM_WIDTH+18:0] scaled;

  highest_bit #(
      .WIDTH(33)
  ) u_place (
      .clk    (clk),
      .data_in(total_q),
      .place  (place)
  );

  always_ff @(posedge clk) begin
    mantissa_q   <= 17'({total_q, 16'd0} >> place);
    entry_q      <= reciprocals[mantissa_q[15:8]];
    r_q          <= entry_q;
    near_one_q   <= 34'(mantissa_q) * 34'(r_q);
    correction_q <= 18'((34'h2_0000_0000 - near_one_q) >> 15);
    inverse_q    <= 34'(r_q) * 34'(correction_q);
    reciprocal_q <= 18'(inverse_q >> place);
    finishing_q  <= finish || (finishing_q && index_q != INDEX'(HEAD_DIM - 1));
    if (finishing_q) index_q <= index_q == INDEX'(HEAD_DIM - 1) ? '0 : index_q + 1'b1;
    for (int i = 0; i < BEATS; i++) begin
      lane_sums_q[i] <= sums_q[INDEX'(i) * INDEX'(LANES) + INDEX'(index_q[LANE_BITS-1:0])];
    end
    beat_1_q    <= BEAT_BITS'(index_q >> LANE_BITS);
    sum_q       <= lane_sums_q[beat_1_q];
    sum_valid_q <= {sum_valid_q[3:0], finishing_q};
    if (rst) begin
      finishing_q <= 1'b0;
      index_q     <= '0;
      sum_valid_q <= '0;
    end
  end

  wide_product #(
      .A_WIDTH(SUM_WIDTH),
      .B_WIDTH(19)
  ) u_scaled (
      .clk    (clk),
      .a      (sum_q),
      .b      ({1'b0, reciprocal_q}),
      .product(scaled)
  );

  shift_cast #(
      .IN_WIDTH(64)
  ) u_cast (
      .clk           (clk),
      .rst           (rst),
      .data_in       (scaled[63:0]),
      .shift         (shift),
      .data_in_valid (sum_valid_q[4]),
      .data_out      (result),
      .data_out_valid(result_valid)
  );

  assign is_busy = header_q != '0 || valid_q != '0 || finishing_q
      || sum_valid_q != '0 || result_valid;

  wire logic unused_ok = &{1'b0, rounded_q[32], rounded_q[15:0], scaled[SUM_WIDTH+18:64]};

endmodule

`default_nettype wire
