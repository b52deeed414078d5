// Reload of the weights of a design at run time: stops the inputs, waits until the design is empty,
// writes the memories piece by piece, and lets the design run only with weights that are whole.
//
// After `load_begin` no input starts a new tensor; one that has begun goes on to its end, also on
// the inputs that are behind. When the last tensor has left, the design is held in reset and pieces
// are taken: PIECES pieces of weights, then their CRC-32 (`crc32_word`). With the right checksum the
// design runs on. After a wrong one, or an abort behind the first piece, it takes no input until a
// reload succeeds. A reset by `aresetn` does not change that: memories keep what they have.
`default_nettype none

module weight_loader #(
    parameter int          INPUTS      = 1,     // streams into the design
    parameter int          OUTPUTS     = 1,     // streams out of it
    parameter int          FLIGHT      = 1,     // tensors that the design takes together
    parameter int          PIECES      = 4,     // pieces of the weights, 1 or more
    parameter int          INDEX_WIDTH = 2,     // bits of the number of a piece
    parameter logic [31:0] FIRST_CRC   = 32'h0, // checksum of the weights that the memories start with
    parameter int          COUNT       = 16     // bits that count the tensors inside
) (
    input  wire logic                   aclk,
    input  wire logic                   aresetn,
    input  wire logic                   load_begin,
    input  wire logic                   load_abort,
    input  wire logic                   load_write,  // a piece or the checksum, if load_ready
    input  wire logic [           31:0] load_data,
    output      logic                   load_ready,
    output      logic                   load_busy,   // no access in this cycle
    output      logic [            3:0] load_state,  // {not whole, wrong checksum, loading, waiting}
    output      logic [           31:0] load_count,  // pieces taken since the reload began
    output      logic [           31:0] load_crc,    // checksum of the weights inside
    input  wire logic [     INPUTS-1:0] starts,      // a tensor enters
    input  wire logic [     INPUTS-1:0] between,     // the next transfer is the first of a tensor
    input  wire logic [    OUTPUTS-1:0] ends,        // a tensor has left
    input  wire logic                   run,
    output      logic [     INPUTS-1:0] takes,       // the input may take a transfer
    output      logic                   load_rst,    // hold the design in reset
    output      logic                   piece_valid,
    output      logic [INDEX_WIDTH-1:0] piece_index,
    output      logic [           31:0] piece
);

  localparam logic [1:0] RUN = 2'd0, DRAIN = 2'd1, LOAD = 2'd2, STOPPED = 2'd3;
  localparam int FLIGHT_WIDTH = FLIGHT > 1 ? $clog2(FLIGHT) : 1;

  logic is_whole_q;
  logic [31:0] inside_crc_q;

  initial begin  // as the memories: set with the configuration, and not reset
    is_whole_q   = 1'b1;
    inside_crc_q = FIRST_CRC;
  end

  logic [1:0] state_q;
  logic is_wrong_q, is_taken, is_checksum, is_match, is_start;
  logic [31:0] count_q, crc_q, crc_next;

  crc32_word u_crc (
      .crc (crc_q),
      .data(load_data),
      .next(crc_next)
  );

  assign load_ready  = state_q == LOAD;
  assign load_busy   = piece_valid;
  assign load_state  = {!is_whole_q, is_wrong_q, state_q == LOAD, state_q == DRAIN};
  assign load_count  = count_q;
  assign load_crc    = inside_crc_q;
  assign load_rst    = state_q == LOAD || state_q == STOPPED;
  assign is_taken    = load_write && load_ready && aresetn;
  assign is_checksum = count_q == 32'(PIECES);
  assign is_match    = load_data == ~crc_q;

  // -- the design is empty -------------------------------------------------------------------

  logic [COUNT-1:0] entered_q[INPUTS];
  logic [COUNT-1:0] left_q[OUTPUTS];
  logic [FLIGHT_WIDTH-1:0] flight_q[INPUTS];
  logic [INPUTS-1:0] is_behind, is_partial;
  logic is_empty;

  for (genvar k = 0; k < INPUTS; k++) begin : g_input
    logic [INPUTS-1:0] is_before;
    for (genvar j = 0; j < INPUTS; j++) begin : g_other
      logic [COUNT-1:0] more;
      assign more         = entered_q[j] - entered_q[k];
      assign is_before[j] = more != '0 && !more[COUNT-1];
    end
    assign is_behind[k]  = |is_before;
    assign is_partial[k] = flight_q[k] != '0;  // others fly with the tensor before
    assign takes[k]      = run && (state_q == RUN || state_q == DRAIN
                                && (!between[k] || is_behind[k] || is_partial[k]));

    always_ff @(posedge aclk) begin
      if (starts[k]) begin
        entered_q[k] <= entered_q[k] + 1'b1;
        flight_q[k]  <= 32'(flight_q[k]) == FLIGHT - 1 ? '0 : flight_q[k] + 1'b1;
      end
      if (!aresetn) begin
        entered_q[k] <= '0;
        flight_q[k]  <= '0;
      end
    end
  end

  for (genvar k = 0; k < OUTPUTS; k++) begin : g_output
    always_ff @(posedge aclk) begin
      if (ends[k]) left_q[k] <= left_q[k] + 1'b1;
      if (!aresetn) left_q[k] <= '0;
    end
  end

  always_comb begin
    is_empty = &between && starts == '0;
    for (int k = 1; k < INPUTS; k++) is_empty = is_empty && entered_q[k] == entered_q[0];
    for (int k = 0; k < OUTPUTS; k++) is_empty = is_empty && left_q[k] == entered_q[0];
  end

  // -- the weights ---------------------------------------------------------------------------

  assign is_start = state_q == LOAD ? load_begin
                  : state_q == STOPPED ? load_begin : state_q == DRAIN && is_empty && !load_abort;

  always_ff @(posedge aclk) begin
    piece_valid <= is_taken && !is_checksum;
    piece_index <= count_q[INDEX_WIDTH-1:0];
    piece       <= load_data;
    if (is_taken && !is_checksum) begin
      is_whole_q <= 1'b0;
      count_q    <= count_q + 1'b1;
      crc_q      <= crc_next;
    end
    case (state_q)
      RUN: if (load_begin) state_q <= DRAIN;
      DRAIN: if (load_abort) state_q <= RUN;
      LOAD: if (load_abort) state_q <= is_whole_q ? RUN : STOPPED;
      default: state_q <= STOPPED;
    endcase
    if (load_begin) is_wrong_q <= 1'b0;
    if (is_start) begin
      state_q <= LOAD;
      count_q <= '0;
      crc_q   <= '1;
    end
    if (is_taken && is_checksum) begin
      state_q    <= is_match ? RUN : STOPPED;
      is_wrong_q <= !is_match;
      is_whole_q <= is_match;
      if (is_match) inside_crc_q <= load_data;
    end
    if (!aresetn) begin
      state_q     <= is_whole_q ? RUN : STOPPED;
      is_wrong_q  <= 1'b0;
      piece_valid <= 1'b0;
      count_q     <= '0;
    end
  end

endmodule

`default_nettype wire
