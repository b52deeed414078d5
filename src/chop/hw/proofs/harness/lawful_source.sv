// Whether a source has kept the contract up to this cycle: valid, once high, stays with the same
// data until the beat is taken.
`default_nettype none

module lawful_source #(
    parameter int WIDTH = 2
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data,
    input  wire logic valid,
    input  wire logic ready,
    output      logic is_lawful
);

  logic is_lawful_q = 1'b1;
  logic was_stalled_q = 1'b0;
  logic [WIDTH-1:0] was_q;

  assign is_lawful = is_lawful_q && !(was_stalled_q && !(valid && data == was_q));

  always_ff @(posedge clk) begin
    is_lawful_q   <= is_lawful || rst;
    was_stalled_q <= valid && !ready && !rst;
    was_q         <= data;
  end

endmodule

`default_nettype wire
