// The laws of a stream that passes without a register: a beat leaves in the cycle in which all its
// parts are taken, as `expected`; it is offered as soon as all of them are.
`default_nettype none

module pass_laws #(
    parameter int WIDTH = 2,
    parameter int SOURCES = 1
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic is_lawful,
    input  wire logic [SOURCES-1:0] source_valid,
    input  wire logic [SOURCES-1:0] source_ready,
    input  wire logic [WIDTH-1:0] expected,
    input  wire logic [WIDTH-1:0] data,
    input  wire logic valid,
    input  wire logic ready,
    output      logic [2:0] broken
);

  logic is_reset_q = 1'b0;
  logic was_stalled_q, is_live;
  logic [WIDTH-1:0] was_q;

  always_ff @(posedge clk) begin
    is_reset_q    <= is_reset_q || rst;
    was_stalled_q <= valid && !ready && !rst;
    was_q         <= data;
  end

  assign is_live = is_reset_q && !rst && is_lawful;
  assign broken[0] = is_live
      && ((source_valid & source_ready) != {SOURCES{valid && ready}} || valid && data != expected);
  assign broken[1] = is_live && was_stalled_q && !(valid && data == was_q);
  assign broken[2] = is_live && &source_valid && !valid;

endmodule

`default_nettype wire
