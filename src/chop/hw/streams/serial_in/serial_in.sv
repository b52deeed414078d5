// Gathers bits to beats, the lowest bit first: brings a stream of any width in by three pins.
// Latency 1 cycle after the last bit of a beat, throughput DATA_WIDTH bits in DATA_WIDTH + 1 cycles.
`default_nettype none

module serial_in #(
    parameter int DATA_WIDTH = 8  // bits of one beat, 1 or more
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic                  data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1) begin : g_refuse_size
    $error("serial_in: width must be 1 or more, got %0d", DATA_WIDTH);
  end
`endif

  localparam int COUNT_WIDTH = $clog2(DATA_WIDTH + 1);

  logic [DATA_WIDTH-1:0] bits_q;
  logic [COUNT_WIDTH-1:0] left_q;  // bits that are still to come
  logic is_full_q, shift;

  assign data_in_0_ready  = !is_full_q && !rst;  // a reset that comes late loses no bit
  assign data_out_0       = bits_q;
  assign data_out_0_valid = is_full_q;
  assign shift            = data_in_0_valid && data_in_0_ready;

  always_ff @(posedge clk) begin
    if (shift) begin
      bits_q    <= DATA_WIDTH'({data_in_0, bits_q} >> 1);
      left_q    <= left_q == COUNT_WIDTH'(1) ? COUNT_WIDTH'(DATA_WIDTH) : left_q - 1'b1;
      is_full_q <= left_q == COUNT_WIDTH'(1);
    end else if (data_out_0_ready) begin
      is_full_q <= 1'b0;
    end
    if (rst) begin
      left_q    <= COUNT_WIDTH'(DATA_WIDTH);
      is_full_q <= 1'b0;
    end
  end

endmodule

`default_nettype wire
