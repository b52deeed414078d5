// Shift right by a number of bits that is known at run time, round half to even, saturate.
// Latency 4 cycles, throughput 1 element per cycle. It never stalls.
`default_nettype none

module shift_cast #(
    parameter int IN_WIDTH  = 56,  // bits of an exact number, signed, 2 to 64
    parameter int OUT_WIDTH = 16   // bits of a result, signed, below IN_WIDTH
) (
    input  wire logic                        clk,
    input  wire logic                        rst,
    input  wire logic signed [ IN_WIDTH-1:0] data_in,
    input  wire logic        [          5:0] shift,   // bits dropped
    input  wire logic                        data_in_valid,
    output      logic signed [OUT_WIDTH-1:0] data_out,
    output      logic                        data_out_valid
);

  localparam int HIGH_WIDTH = IN_WIDTH - OUT_WIDTH + 1;  // bits that are equal if a result fits

  logic signed [2*IN_WIDTH-1:0] coarse_1_q;  // shifted by a multiple of 8 bits
  logic [2:0] fine_1_q;
  logic signed [IN_WIDTH-1:0] floor_2_q;
  logic [IN_WIDTH-1:0] dropped_2_q;  // the highest dropped bit is in the highest place
  logic [HIGH_WIDTH-1:0] high_2;
  logic signed [OUT_WIDTH-1:0] floor_3_q;
  logic signed [OUT_WIDTH:0] rounded_3;
  logic up_3_q, over_3_q, sign_3_q;
  logic [2:0] valid_q;

  assign high_2    = floor_2_q[IN_WIDTH-1:OUT_WIDTH-1];
  assign rounded_3 = (OUT_WIDTH + 1)'(floor_3_q) + (OUT_WIDTH + 1)'({1'b0, up_3_q});

  always_ff @(posedge clk) begin
    coarse_1_q <= $signed({data_in, IN_WIDTH'(0)}) >>> {shift[5:3], 3'd0};
    fine_1_q   <= shift[2:0];
    {floor_2_q, dropped_2_q} <= coarse_1_q >>> fine_1_q;
    floor_3_q  <= floor_2_q[OUT_WIDTH-1:0];
    up_3_q     <= dropped_2_q[IN_WIDTH-1]
        && (dropped_2_q[IN_WIDTH-2:0] != '0 || floor_2_q[0]);
    over_3_q   <= high_2 != '0 && high_2 != '1;
    sign_3_q   <= floor_2_q[IN_WIDTH-1];
    data_out   <= over_3_q || rounded_3[OUT_WIDTH] != rounded_3[OUT_WIDTH-1]
        ? {sign_3_q, {(OUT_WIDTH - 1) {!sign_3_q}}} : rounded_3[OUT_WIDTH-1:0];
    valid_q        <= {valid_q[1:0], data_in_valid};
    data_out_valid <= valid_q[2];
    if (rst) begin
      valid_q        <= '0;
      data_out_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
