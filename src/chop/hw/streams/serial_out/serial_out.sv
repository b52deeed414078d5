// Gives beats bit by bit, the lowest bit first: takes a stream of any width out by three pins.
// Latency 1 cycle, throughput DATA_WIDTH bits in DATA_WIDTH + 1 cycles.
`default_nettype none

module serial_out #(
    parameter int DATA_WIDTH = 8  // bits of one beat, 1 or more
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    output      logic                  data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1) begin : g_refuse_size
    $error("serial_out: width must be 1 or more, got %0d", DATA_WIDTH);
  end
`endif

  localparam int COUNT_WIDTH = $clog2(DATA_WIDTH + 1);

  logic [DATA_WIDTH-1:0] bits_q;
  logic [COUNT_WIDTH-1:0] left_q;  // bits that are still to go
  logic is_full_q;

  assign data_in_0_ready  = !is_full_q;
  assign data_out_0       = bits_q[0];
  assign data_out_0_valid = is_full_q;

  always_ff @(posedge clk) begin
    if (!is_full_q) begin
      bits_q    <= data_in_0;
      left_q    <= COUNT_WIDTH'(DATA_WIDTH);
      is_full_q <= data_in_0_valid;
    end else if (data_out_0_ready) begin
      bits_q    <= bits_q >> 1;
      left_q    <= left_q - 1'b1;
      is_full_q <= left_q != COUNT_WIDTH'(1);
    end
    if (rst) is_full_q <= 1'b0;
  end

endmodule

`default_nettype wire
