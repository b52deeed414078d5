// Streams the words of a read-only memory in order, for ever: a layer's constant parameters.
// Latency 1 cycle after reset, throughput 1 beat per cycle.
`default_nettype none

module rom_source #(
    parameter int DATA_WIDTH = 8,          // bits of one word, 1 or more
    parameter int DEPTH      = 4,          // words, 1 or more
    parameter     INIT_FILE  = "rom.mem"   // DEPTH hexadecimal words, read by $readmemh
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || DEPTH < 1) begin : g_refuse_size
    $error("rom_source: width and DEPTH must be 1 or more, got %0d and %0d", DATA_WIDTH, DEPTH);
  end
`endif

  localparam int ADDRESS_WIDTH = DEPTH > 1 ? $clog2(DEPTH) : 1;

  logic [DATA_WIDTH-1:0] words[DEPTH];
  logic [ADDRESS_WIDTH-1:0] address_q;

  initial $readmemh(INIT_FILE, words);

  always_ff @(posedge clk) begin
    if (data_out_0_ready || !data_out_0_valid) begin
      data_out_0       <= words[address_q];
      data_out_0_valid <= 1'b1;
      address_q        <= address_q == ADDRESS_WIDTH'(DEPTH - 1) ? '0 : address_q + 1'b1;
    end
    if (rst) begin
      data_out_0_valid <= 1'b0;
      address_q        <= '0;
    end
  end

endmodule

`default_nettype wire
