// Products of a streamed matrix in MXINT and a vector in MXINT8, one row after the other.
//
// A beat has LANES weights of WEIGHT_WIDTH bits or, if is_wide, DATA_WIDTH / 8 of 8 bits. The
// vector's lanes come one cycle after the beat. The sum of a row is exact; then it is rounded to
// RESIDUAL bits, and saturated to 16 bits besides. Latency from the last beat of a row to its
// element: 14 cycles. Throughput 1 beat per cycle.
`default_nettype none

module block_dot #(
    parameter int DATA_WIDTH   = 128,  // bits of a beat
    parameter int WEIGHT_WIDTH = 4,    // bits of a weight, 4 or 8
    parameter int ACC_WIDTH    = 56,   // bits of an exact sum
    parameter int RESIDUAL     = 16    // bits of an element of the residual stream, 16 or more
) (
    input  wire logic                                 clk,
    input  wire logic                                 rst,
    input  wire logic [               DATA_WIDTH-1:0] beat,
    input  wire logic                                 beat_valid,
    input  wire logic                                 beat_first,     // of its row
    input  wire logic                                 beat_last,      // of its row
    input  wire logic [                          3:0] beat_exponent,  // of its block
    input  wire logic                                 is_wide,
    input  wire logic                                 half,           // of the lanes, if is_wide
    input  wire logic [DATA_WIDTH/WEIGHT_WIDTH*8-1:0] lanes,          // one cycle after the beat
    input  wire logic [                          3:0] lanes_exponent,
    input  wire logic [                          5:0] shift_even,     // of rows 0, 2, ...
    input  wire logic [                          5:0] shift_odd,
    input  wire logic                                 restart,        // the next row is row 0
    output      logic signed [                  15:0] element,
    output      logic signed [          RESIDUAL-1:0] element_wide,
    output      logic                                 element_odd,
    output      logic                                 element_valid
);

  localparam int LANES = DATA_WIDTH / WEIGHT_WIDTH;
  localparam int FACTOR_WIDTH = WEIGHT_WIDTH + 1;  // a low half of 4 bits has no sign
  localparam int PRODUCT_WIDTH = FACTOR_WIDTH + 8;
  localparam int SUM_WIDTH = 24;  // 64 products of 15 bits
  localparam int GROUP = LANES < 8 ? LANES / 2 : 4;  // products that one stage adds
  localparam int GROUPS = LANES / 2 / GROUP;
  localparam int GROUP_WIDTH = PRODUCT_WIDTH + 2;

  logic [DATA_WIDTH-1:0] beat_1_q, beat_2_q;
  logic [LANES*8-1:0] lanes_2_q;  // as a block RAM returns them: late in a cycle
  logic [3:0] exponent_1_q;
  logic half_1_q, half_2_q;
  logic [4:0] exponent_2_q, exponent_3_q, exponent_4_q, exponent_5_q, exponent_6_q, exponent_7_q;
  logic [7:0] valid_q, first_q, last_q;
  logic signed [PRODUCT_WIDTH-1:0] products_4_q[LANES];
  logic signed [GROUP_WIDTH-1:0] even_groups[GROUPS], odd_groups[GROUPS];
  logic signed [GROUP_WIDTH-1:0] even_5_q[GROUPS], odd_5_q[GROUPS];
  logic signed [SUM_WIDTH-1:0] even_sum, odd_sum, even_6_q, odd_6_q, total_7_q;
  logic signed [ACC_WIDTH-1:0] shifted_8_q, acc_9_q;
  logic signed [RESIDUAL-1:0] cast;
  logic [3:0] odd_q;
  logic [5:0] shift_q;
  logic row_done_q, row_odd_q, row_odd, cast_valid;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    localparam int BYTE = i * WEIGHT_WIDTH / 8;
    localparam int UPPER = DATA_WIDTH / 8 + BYTE < LANES ? DATA_WIDTH / 8 + BYTE : BYTE;
    logic signed [FACTOR_WIDTH-1:0] weight_3_q;
    logic signed [7:0] lane_3_q;
    logic is_unsigned;
    assign is_unsigned = WEIGHT_WIDTH == 4 && i % 2 == 0 && is_wide;
    always_ff @(posedge clk) begin
      weight_3_q <= $signed({
        !is_unsigned && beat_2_q[(i+1)*WEIGHT_WIDTH-1], beat_2_q[i*WEIGHT_WIDTH+:WEIGHT_WIDTH]
      });
      lane_3_q <= !is_wide ? lanes_2_q[i*8+:8] : half_2_q ? lanes_2_q[UPPER*8+:8]
          : lanes_2_q[BYTE*8+:8];
      products_4_q[i] <= PRODUCT_WIDTH'(weight_3_q) * PRODUCT_WIDTH'(lane_3_q);
    end
  end

  always_comb begin
    even_sum = '0;
    odd_sum  = '0;
    for (int g = 0; g < GROUPS; g++) begin
      even_groups[g] = '0;
      odd_groups[g]  = '0;
      for (int i = g * GROUP; i < (g + 1) * GROUP; i++) begin
        even_groups[g] = even_groups[g] + GROUP_WIDTH'(products_4_q[2*i]);
        odd_groups[g]  = odd_groups[g] + GROUP_WIDTH'(products_4_q[2*i+1]);
      end
      even_sum = even_sum + SUM_WIDTH'(even_5_q[g]);
      odd_sum  = odd_sum + SUM_WIDTH'(odd_5_q[g]);
    end
  end

  assign row_odd = !(rst || restart) && row_odd_q != row_done_q;

  always_ff @(posedge clk) begin
    beat_1_q     <= beat;
    beat_2_q     <= beat_1_q;
    exponent_1_q <= beat_exponent;
    half_1_q     <= half;
    half_2_q     <= half_1_q;
    lanes_2_q    <= lanes;
    exponent_2_q <= 5'(exponent_1_q) + 5'(lanes_exponent);
    exponent_3_q <= exponent_2_q;
    exponent_4_q <= exponent_3_q;
    even_5_q     <= even_groups;
    odd_5_q      <= odd_groups;
    exponent_5_q <= exponent_4_q;
    even_6_q     <= even_sum;
    odd_6_q      <= odd_sum;
    exponent_6_q <= exponent_5_q;
    total_7_q    <= even_6_q + (WEIGHT_WIDTH == 4 && is_wide ? odd_6_q <<< 4 : odd_6_q);
    exponent_7_q <= exponent_6_q;
    shifted_8_q  <= ACC_WIDTH'(total_7_q) <<< exponent_7_q;
    if (valid_q[7]) acc_9_q <= (first_q[7] ? '0 : acc_9_q) + shifted_8_q;
    valid_q       <= {valid_q[6:0], beat_valid};
    first_q       <= {first_q[6:0], beat_first};
    last_q        <= {last_q[6:0], beat_last};
    row_done_q    <= valid_q[7] && last_q[7];
    row_odd_q     <= row_odd;
    shift_q       <= row_odd ? shift_odd : shift_even;
    odd_q         <= {odd_q[2:0], row_odd_q};
    element_odd   <= odd_q[3];
    element_wide  <= cast;
    element_valid <= cast_valid;
    if (rst) begin
      valid_q       <= '0;
      row_done_q    <= 1'b0;
      element_valid <= 1'b0;
    end
  end

  shift_cast #(
      .IN_WIDTH (ACC_WIDTH),
      .OUT_WIDTH(RESIDUAL)
  ) u_cast (
      .clk           (clk),
      .rst           (rst),
      .data_in       (acc_9_q),
      .shift         (shift_q),
      .data_in_valid (row_done_q),
      .data_out      (cast),
      .data_out_valid(cast_valid)
  );

  if (RESIDUAL > 16) begin : g_saturate
    logic [RESIDUAL-16:0] high;
    assign high = cast[RESIDUAL-1:15];
    always_ff @(posedge clk) begin
      element <= high != '0 && high != '1 ? {cast[RESIDUAL-1], {15{!cast[RESIDUAL-1]}}}
          : cast[15:0];
    end
  end else begin : g_same
    assign element = element_wide;
  end

endmodule

`default_nettype wire
