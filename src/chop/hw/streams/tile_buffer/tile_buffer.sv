// Keeps matrices that are streamed in and streams the tiles of each, REPEATS times over.
// Latency: the whole matrix and 1 cycle; throughput 1 tile per cycle, one matrix is read while the
// next loads. `data_out_0_ready` goes to the memory's read enable, as in `rom_source`.
//
// Block RAM, one bank for each of GROUP rows that a tile has side by side; row 0 in the low bits.
`default_nettype none

module tile_buffer #(
    parameter int DATA_WIDTH   = 16,  // bits of one beat, 1 or more
    parameter int ROWS         = 4,  // rows of a matrix
    parameter int ROW_BEATS    = 2,  // beats of a row, 1 or more
    parameter int GROUP        = 2,  // rows of a tile; divides ROWS
    parameter int REPEATS      = 4,  // how often each matrix is streamed, 1 or more
    parameter bit GROUPS_FIRST = 1'b0  // order of the tiles: 0 along the rows, 1 across them
) (
    input  wire logic                        clk,
    input  wire logic                        rst,
    input  wire logic [      DATA_WIDTH-1:0] data_in_0,
    input  wire logic                        data_in_0_valid,
    output      logic                        data_in_0_ready,
    output      logic [GROUP*DATA_WIDTH-1:0] data_out_0,
    output      logic                        data_out_0_valid,
    input  wire logic                        data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || ROW_BEATS < 1 || REPEATS < 1) begin : g_refuse_size
    $error("tile_buffer: width, ROW_BEATS and REPEATS must be 1 or more, got %0d, %0d and %0d",
           DATA_WIDTH, ROW_BEATS, REPEATS);
  end
  if (GROUP < 1 || ROWS % GROUP != 0) begin : g_refuse_group
    $error("tile_buffer: GROUP must divide ROWS, got %0d of %0d", GROUP, ROWS);
  end
`endif

  localparam int TILES = ROWS / GROUP * ROW_BEATS;
  localparam int TILE_WIDTH = TILES > 1 ? $clog2(TILES) : 1;
  localparam int BEAT_WIDTH = ROW_BEATS > 1 ? $clog2(ROW_BEATS) : 1;
  localparam int BANK_WIDTH = GROUP > 1 ? $clog2(GROUP) : 1;
  localparam int REPEAT_WIDTH = REPEATS > 1 ? $clog2(REPEATS) : 1;
  localparam logic [TILE_WIDTH-1:0] LAST_TILE = TILE_WIDTH'(TILES - 1);

  logic [TILE_WIDTH-1:0] write_q, group_q, write_up, read_q, read_next;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic [BANK_WIDTH-1:0] bank_q;
  logic [REPEAT_WIDTH-1:0] repeat_q;
  logic [1:0] full_q;
  logic write_half_q, read_half_q;
  logic push, step, is_row_end, is_last_bank, is_last_tile, filled, emptied, enable;

  assign data_in_0_ready = full_q != 2'd2;
  assign push            = data_in_0_valid && data_in_0_ready;
  assign is_row_end      = beat_q == BEAT_WIDTH'(ROW_BEATS - 1);
  assign is_last_bank    = bank_q == BANK_WIDTH'(GROUP - 1);
  assign write_up        = write_q == LAST_TILE ? '0 : write_q + 1'b1;
  assign filled          = push && is_row_end && is_last_bank && write_q == LAST_TILE;

  assign enable       = data_out_0_ready || !data_out_0_valid;
  assign step         = full_q != 2'd0 && enable;
  assign is_last_tile = read_q == LAST_TILE;
  assign emptied      = step && is_last_tile && repeat_q == REPEAT_WIDTH'(REPEATS - 1);

  if (GROUPS_FIRST && TILES > ROW_BEATS) begin : g_across
    logic is_last_group;
    assign is_last_group = 32'(read_q) >= TILES - ROW_BEATS;
    always_comb begin
      read_next = read_q + TILE_WIDTH'(ROW_BEATS);
      if (is_last_group) read_next = read_q - TILE_WIDTH'(TILES - ROW_BEATS - 1);
      if (is_last_tile) read_next = '0;
    end
  end else begin : g_along
    assign read_next = is_last_tile ? '0 : read_q + 1'b1;
  end

  always_ff @(posedge clk) begin
    if (push) begin
      beat_q  <= is_row_end ? '0 : beat_q + 1'b1;
      write_q <= is_row_end && !is_last_bank ? group_q : write_up;
      if (is_row_end) bank_q <= is_last_bank ? '0 : bank_q + 1'b1;
      if (is_row_end && is_last_bank) group_q <= write_up;
    end
    if (step) begin
      read_q <= read_next;
      if (is_last_tile) repeat_q <= emptied ? '0 : repeat_q + 1'b1;
    end
    if (enable) data_out_0_valid <= step;
    if (filled) write_half_q <= !write_half_q;
    if (emptied) read_half_q <= !read_half_q;
    if (filled && !emptied) full_q <= full_q + 1'b1;
    if (emptied && !filled) full_q <= full_q - 1'b1;
    if (rst) begin
      write_q          <= '0;
      group_q          <= '0;
      beat_q           <= '0;
      bank_q           <= '0;
      read_q           <= '0;
      repeat_q         <= '0;
      full_q           <= '0;
      write_half_q     <= 1'b0;
      read_half_q      <= 1'b0;
      data_out_0_valid <= 1'b0;
    end
  end

  for (genvar bank = 0; bank < GROUP; bank++) begin : g_bank
    // What is read is never what is written: one half is full, the other loads.
    (* no_rw_check *) logic [DATA_WIDTH-1:0] tiles[2**(TILE_WIDTH+1)];
    always_ff @(posedge clk) begin
      if (push && bank_q == BANK_WIDTH'(bank)) tiles[{write_half_q, write_q}] <= data_in_0;
      if (enable) data_out_0[bank*DATA_WIDTH+:DATA_WIDTH] <= tiles[{read_half_q, read_q}];
    end
  end

endmodule

`default_nettype wire
