// A source that offers the same BEATS beats again and again. Their values are free: nothing drives
// `any`. They change only in a reset. `valid` is free too; the source is lawful as long as it is not
// withdrawn.
`default_nettype none

module repeating_source #(
    parameter int WIDTH = 2,
    parameter int BEATS = 2
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic valid,
    input  wire logic ready,
    output      logic [WIDTH-1:0] data,
    output      logic [BEATS*WIDTH-1:0] beats,  // all of them, the first in the low bits
    output      logic is_lawful
);

  logic [BEATS*WIDTH-1:0] any, beats_q;
  logic [7:0] place_q;

  assign beats = beats_q;
  assign data  = beats_q[place_q*WIDTH+:WIDTH];

  always_ff @(posedge clk) begin
    if (valid && ready) place_q <= 32'(place_q) == BEATS - 1 ? '0 : place_q + 1'b1;
    if (rst) begin
      beats_q <= any;
      place_q <= '0;
    end
  end

  lawful_source #(.WIDTH(1)) u_valid (.*, .data(1'b0));

endmodule

`default_nettype wire
