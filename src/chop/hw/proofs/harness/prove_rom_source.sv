// `rom_source`: its words in order, for ever. One more is due as soon as one is taken.
`default_nettype none

module prove_rom_source #(
    parameter int WIDTH = 2,
    parameter int DEPTH = 3,
    parameter logic [DEPTH*WIDTH-1:0] TABLE = '0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  localparam int SLOTS = 2;

  logic data_out_0_valid, push;
  logic [WIDTH-1:0] data_out_0, due;
  logic [3:0] next_q, head;  // numbers of words
  logic [1:0] waiting_q;

  assign due  = TABLE[32'(head)*WIDTH+:WIDTH];
  assign push = 32'(waiting_q) < SLOTS;

  always_ff @(posedge clk) begin
    if (push) next_q <= 32'(next_q) == DEPTH - 1 ? '0 : next_q + 1'b1;
    waiting_q <= waiting_q + 2'(push) - 2'(data_out_0_valid && data_out_0_ready);
    if (rst) begin
      next_q    <= '0;
      waiting_q <= '0;
    end
  end

  rom_source #(.DATA_WIDTH(WIDTH), .DEPTH(DEPTH), .INIT_FILE("table.mem")) dut (.*);

  stream_laws #(.WIDTH(4), .BEAT(WIDTH), .SLOTS(SLOTS), .LATENCY(1), .GAP(1)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (1'b1),
      .is_moving(1'b1),
      .push     (push),
      .expected (next_q),
      .head     (head),
      .due      (due),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
