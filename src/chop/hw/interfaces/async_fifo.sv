// Queue between two clocks that need not be related: 2**DEPTH_BITS beats in a memory.
//
// Each side counts in Gray code, so that a count changes in one bit at a time and the other side, which
// samples it through two registers, sees the old or the new count and nothing else. The queue may
// look fuller to the writer, and emptier to the reader, than it is; never the other way round.
// Latency 3 cycles of the reader after the write; throughput 1 beat per cycle of the slower clock.
//
// Both resets must be high together for three cycles of the slower clock. Nothing is taken in reset, so
// that a side which leaves it earlier loses nothing.
`default_nettype none

module async_fifo #(
    parameter int DATA_WIDTH = 8,  // bits of a beat, 1 or more
    parameter int DEPTH_BITS = 4   // 2**DEPTH_BITS beats, 2 or more
) (
    input  wire logic                  write_clk,
    input  wire logic                  write_rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    input  wire logic                  read_clk,
    input  wire logic                  read_rst,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

  localparam int COUNT = DEPTH_BITS + 1;
  // the writer is a whole queue ahead: the two upper bits of a Gray count differ, the others do not
  localparam logic [COUNT-1:0] WHOLE = COUNT'(3) << (COUNT - 2);

  (* ram_style = "distributed" *)
  logic [DATA_WIDTH-1:0] slots[2**DEPTH_BITS];
  logic [COUNT-1:0] write_count_q, write_next, write_gray_q;
  logic [COUNT-1:0] read_count_q, read_next, read_gray_q;
  (* ASYNC_REG = "TRUE" *)
  logic [COUNT-1:0] read_early_q, read_seen_q;
  (* ASYNC_REG = "TRUE" *)
  logic [COUNT-1:0] write_early_q, write_seen_q;

  // -- the writer ----------------------------------------------------------------------------

  assign data_in_0_ready = !write_rst && write_gray_q != (read_seen_q ^ WHOLE);
  assign write_next      = write_count_q + 1'b1;

  always_ff @(posedge write_clk) begin
    read_early_q <= read_gray_q;
    read_seen_q  <= read_early_q;
    if (data_in_0_valid && data_in_0_ready) begin
      slots[write_count_q[DEPTH_BITS-1:0]] <= data_in_0;
      write_count_q <= write_next;
      write_gray_q  <= write_next ^ (write_next >> 1);
    end
    if (write_rst) begin
      write_count_q <= '0;
      write_gray_q  <= '0;
      read_early_q  <= '0;
      read_seen_q   <= '0;
    end
  end

  // -- the reader ----------------------------------------------------------------------------

  assign data_out_0_valid = read_gray_q != write_seen_q;
  assign data_out_0       = slots[read_count_q[DEPTH_BITS-1:0]];
  assign read_next        = read_count_q + 1'b1;

  always_ff @(posedge read_clk) begin
    write_early_q <= write_gray_q;
    write_seen_q  <= write_early_q;
    if (data_out_0_valid && data_out_0_ready) begin
      read_count_q <= read_next;
      read_gray_q  <= read_next ^ (read_next >> 1);
    end
    if (read_rst) begin
      read_count_q  <= '0;
      read_gray_q   <= '0;
      write_early_q <= '0;
      write_seen_q  <= '0;
    end
  end

endmodule

`default_nettype wire
