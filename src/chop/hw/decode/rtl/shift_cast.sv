// Shift right by a number of bits that is known at run time, round half to even, saturate.
// Latency 2 cycles, throughput 1 element per cycle. It never stalls.
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

  localparam logic signed [IN_WIDTH:0] HIGH = (IN_WIDTH + 1)'({(OUT_WIDTH - 1) {1'b1}});
  localparam logic signed [IN_WIDTH:0] LOW = ~HIGH;

  logic signed [IN_WIDTH-1:0] floor_q;
  logic signed [IN_WIDTH:0] rounded;
  logic [IN_WIDTH-1:0] dropped;
  logic half_q, rest_q, valid_q;

  // the bits that are dropped, the highest of them in the highest place
  assign dropped = IN_WIDTH'($signed({data_in, IN_WIDTH'(0)}) >>> shift);
  assign rounded = (IN_WIDTH + 1)'(floor_q)
      + (IN_WIDTH + 1)'($signed({1'b0, half_q && (rest_q || floor_q[0])}));

  always_ff @(posedge clk) begin
    floor_q <= data_in >>> shift;
    half_q  <= dropped[IN_WIDTH-1];
    rest_q  <= dropped[IN_WIDTH-2:0] != '0;
    valid_q <= data_in_valid;
    data_out <= rounded > HIGH ? OUT_WIDTH'(HIGH) : rounded < LOW ? OUT_WIDTH'(LOW)
        : OUT_WIDTH'(rounded);
    data_out_valid <= valid_q;
    if (rst) begin
      valid_q        <= 1'b0;
      data_out_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
