// Shift right by a number of bits that is known at run time, round half to even, saturate.
// Latency 3 cycles, throughput 1 element per cycle. It never stalls.
`default_nettype none

module shift_cast #(
    parameter int IN_WIDTH  = 56,  // bits of an exact number, signed, 2 to 64
    parameter int OUT_WIDTH = 16   // bits of a result, signed, below IN_WIDTH
) (
    input  wire logic                        clk,
    input  wire logic                        rst,
    input  wire logic signed [ IN_WIDTH-1:0] data_in,
    input  wire logic        [          5:0] shift,   // bits dropped, stable while elements pass
    input  wire logic                        data_in_valid,
    output      logic signed [OUT_WIDTH-1:0] data_out,
    output      logic                        data_out_valid
);

  localparam int HIGH_WIDTH = IN_WIDTH - OUT_WIDTH + 1;  // bits that are equal if a result fits

  logic signed [IN_WIDTH-1:0] floor_1_q;
  logic [IN_WIDTH-1:0] dropped_1_q;  // the highest dropped bit is in the highest place
  logic [HIGH_WIDTH-1:0] high_1;
  logic signed [OUT_WIDTH-1:0] floor_2_q;
  logic signed [OUT_WIDTH:0] rounded_2;
  logic up_2_q, over_2_q, sign_2_q;
  logic [1:0] valid_q;

  assign high_1    = floor_1_q[IN_WIDTH-1:OUT_WIDTH-1];
  assign rounded_2 = (OUT_WIDTH + 1)'(floor_2_q) + (OUT_WIDTH + 1)'({1'b0, up_2_q});

  always_ff @(posedge clk) begin
    floor_1_q   <= data_in >>> shift;
    dropped_1_q <= IN_WIDTH'($signed({data_in, IN_WIDTH'(0)}) >>> shift);
    floor_2_q   <= floor_1_q[OUT_WIDTH-1:0];
    up_2_q      <= dropped_1_q[IN_WIDTH-1]
        && (dropped_1_q[IN_WIDTH-2:0] != '0 || floor_1_q[0]);
    over_2_q    <= high_1 != '0 && high_1 != '1;
    sign_2_q    <= floor_1_q[IN_WIDTH-1];
    data_out    <= over_2_q || rounded_2[OUT_WIDTH] != rounded_2[OUT_WIDTH-1]
        ? {sign_2_q, {(OUT_WIDTH - 1) {!sign_2_q}}} : rounded_2[OUT_WIDTH-1:0];
    valid_q        <= {valid_q[0], data_in_valid};
    data_out_valid <= valid_q[1];
    if (rst) begin
      valid_q        <= '0;
      data_out_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
