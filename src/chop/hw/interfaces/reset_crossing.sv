// Reset of two clocks from one: active low in the domain of `aclk`, active high on both sides.
//
// The other side follows after two edges of its clock. Hold `aresetn` low for four cycles of the slower
// clock; both sides are then in reset together.
`default_nettype none

module reset_crossing (
    input  wire logic aclk,
    input  wire logic aresetn,
    input  wire logic axis_aclk,
    output      logic rst,       // for aclk
    output      logic axis_rst   // for axis_aclk
);

  logic held_q;
  (* ASYNC_REG = "TRUE" *)
  logic [1:0] axis_held_q;

  assign rst      = held_q;
  assign axis_rst = axis_held_q[1];

  always_ff @(posedge aclk) held_q <= !aresetn;
  always_ff @(posedge axis_aclk) axis_held_q <= {axis_held_q[0], held_q};

endmodule

`default_nettype wire
