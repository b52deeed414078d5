// Clock and reset of a board: the oscillator divided by 2**HALVINGS, and a reset after power-up.
//
// The reset lasts 16 cycles of the divided clock. Registers start at 0 when the part is configured.
`default_nettype none

module board_clock #(
    parameter int HALVINGS = 0  // 0 or more
) (
    input  wire logic oscillator,
    output      logic clk,
    output      logic rst,     // active high
    output      logic resetn   // active low
);

  logic [4:0] count_q;

  initial count_q = '0;

  if (HALVINGS > 0) begin : g_divide
    logic [HALVINGS-1:0] divided_q;
    initial divided_q = '0;
    always_ff @(posedge oscillator) divided_q <= divided_q + 1'b1;
    assign clk = divided_q[HALVINGS-1];
  end else begin : g_pass
    assign clk = oscillator;
  end

  assign rst    = !count_q[4];
  assign resetn = count_q[4];

  always_ff @(posedge clk) if (rst) count_q <= count_q + 5'd1;

endmodule

`default_nettype wire
