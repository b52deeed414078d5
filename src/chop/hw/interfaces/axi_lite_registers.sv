// Control and status of a design over AXI4-Lite, in words of 32 bits:
//
//   0x00  read        0x4553414d, "MASE" in bytes
//   0x04  read, write bit 0: run, 1 after reset; at 0 no input is taken. Writing 1 to bit 1 clears
//                     errors and counters. With HAS_RELOAD, writing 1 to bit 2 begins a reload of
//                     weights, to bit 3 ends it. Bits 1 to 3 read as 0.
//   0x08  read        bit 0: busy, a tensor is inside; bit 1: an input had TLAST in the wrong place;
//                     bit 2: an input had a byte that was not kept. With HAS_RELOAD, bit 3: a
//                     reload waits for the last tensor to leave; bit 4: pieces of weights are
//                     taken; bit 5: the checksum of the last reload was wrong; bit 6: the weights
//                     are not whole, and no input is taken
//   0x0c  read        tensors whose first transfer was taken since reset or clear
//   0x10  read        tensors that have left
//   0x14  read        cycles in which the design was busy, low word; keeps the high word for 0x18
//   0x18  read        high word of the cycles, as it was when the low word was read
//   0x1c  read        transfers with TLAST in the wrong place, bits 15 to 0, and with a byte that was
//                     not kept, bits 31 to 16; a count stays at its largest value
//   0x20  read        accesses that were answered with SLVERR
//   0x24  read, write with HAS_RELOAD: write the next piece of the weights, behind the last one
//                     their checksum; read how many were taken since the reload began
//   0x28  read        with HAS_RELOAD: the checksum of the weights inside
//
// Other addresses, writes to words that are only read, and pieces that are not taken or not written
// whole are answered with SLVERR. A write is done
// when address and data are there, in any order; one write and one read are open at a time.
`default_nettype none

module axi_lite_registers #(
    parameter int INPUTS     = 1,    // streams into the design
    parameter bit HAS_RELOAD = 1'b0, // weights can be written
    parameter int COUNT      = 32    // bits of a counter, 1 to 32
) (
    input  wire logic        aclk,
    input  wire logic        aresetn,
    input  wire logic [ 7:0] s_axil_awaddr,
    input  wire logic [ 2:0] s_axil_awprot,
    input  wire logic        s_axil_awvalid,
    output      logic        s_axil_awready,
    input  wire logic [31:0] s_axil_wdata,
    input  wire logic [ 3:0] s_axil_wstrb,
    input  wire logic        s_axil_wvalid,
    output      logic        s_axil_wready,
    output      logic [ 1:0] s_axil_bresp,
    output      logic        s_axil_bvalid,
    input  wire logic        s_axil_bready,
    input  wire logic [ 7:0] s_axil_araddr,
    input  wire logic [ 2:0] s_axil_arprot,
    input  wire logic        s_axil_arvalid,
    output      logic        s_axil_arready,
    output      logic [31:0] s_axil_rdata,
    output      logic [ 1:0] s_axil_rresp,
    output      logic        s_axil_rvalid,
    input  wire logic        s_axil_rready,
    input  wire logic        starts,      // a tensor enters
    input  wire logic        ends,        // a tensor has left
    input  wire logic [INPUTS-1:0] last_errors,
    input  wire logic [INPUTS-1:0] keep_errors,
    input  wire logic [INPUTS-1:0] last_wrongs,  // of this cycle
    input  wire logic [INPUTS-1:0] keep_wrongs,
    input  wire logic        load_ready,  // a piece would be taken
    input  wire logic        load_busy,   // the last one is being written
    input  wire logic [ 3:0] load_state,  // bits 6 to 3 of the status
    input  wire logic [31:0] load_count,
    input  wire logic [31:0] load_crc,
    input  wire logic        load_rst,    // hold the design in reset
    output      logic        load_begin,
    output      logic        load_abort,
    output      logic        load_write,
    output      logic [31:0] load_data,
    output      logic        run,
    output      logic        clear,
    output      logic        design_rst   // reset of the design, active high
);

  localparam logic [31:0] NAME = 32'h4553414d;
  localparam logic [1:0] OKAY = 2'b00, SLVERR = 2'b10;
  localparam logic [5:0] CONTROL = 6'd1, LOAD = 6'd9, WORDS = HAS_RELOAD ? 6'd11 : 6'd9;
  localparam int ERRORS = COUNT < 16 ? COUNT : 16;

  // -- writes --------------------------------------------------------------------------------

  logic [5:0] address_q;
  logic [31:0] data_q;
  logic [3:0] strobe_q;
  logic has_address_q, has_data_q, is_write, is_control, is_load, is_right;

  assign s_axil_awready = !has_address_q;
  assign s_axil_wready  = !has_data_q;
  assign is_write       = has_address_q && has_data_q && !load_busy
                       && (!s_axil_bvalid || s_axil_bready);
  assign is_control     = is_write && address_q == CONTROL && strobe_q[0];
  assign is_load        = HAS_RELOAD && address_q == LOAD && load_ready && strobe_q == '1;
  assign is_right       = address_q == CONTROL || is_load;
  assign clear          = is_control && data_q[1];
  assign load_begin     = HAS_RELOAD && is_control && data_q[2] && !data_q[3];
  assign load_abort     = HAS_RELOAD && is_control && data_q[3];
  assign load_write     = is_write && is_load;
  assign load_data      = data_q;
  assign design_rst     = !aresetn || load_rst;

  always_ff @(posedge aclk) begin
    if (s_axil_awvalid && s_axil_awready) begin
      address_q     <= s_axil_awaddr[7:2];
      has_address_q <= 1'b1;
    end
    if (s_axil_wvalid && s_axil_wready) begin
      data_q     <= s_axil_wdata;
      strobe_q   <= s_axil_wstrb;
      has_data_q <= 1'b1;
    end
    if (s_axil_bready) s_axil_bvalid <= 1'b0;
    if (is_write) begin
      has_address_q <= 1'b0;
      has_data_q    <= 1'b0;
      s_axil_bvalid <= 1'b1;
      s_axil_bresp  <= is_right ? OKAY : SLVERR;
    end
    if (is_control) run <= data_q[0];
    if (!aresetn) begin
      has_address_q <= 1'b0;
      has_data_q    <= 1'b0;
      s_axil_bvalid <= 1'b0;
      run           <= 1'b1;
    end
  end

  // -- counters ------------------------------------------------------------------------------

  logic [COUNT-1:0] inside_q, entered_q, left_q, refused_q;
  logic [2*COUNT-1:0] cycles_q;
  logic [ERRORS-1:0] last_count_q, keep_count_q;
  logic is_busy, is_refused, is_read, is_known;

  assign is_busy    = inside_q != '0;
  assign is_refused = is_write && !is_right;

  function automatic logic [ERRORS-1:0] more(input logic [ERRORS-1:0] count,
                                             input logic [INPUTS-1:0] wrongs);
    logic [ERRORS-1:0] sum;
    sum = count;
    for (int k = 0; k < INPUTS; k++) sum = wrongs[k] && sum != '1 ? sum + 1'b1 : sum;
    more = sum;  // Yosys knows no `return`
  endfunction

  always_ff @(posedge aclk) begin
    inside_q     <= inside_q + COUNT'(starts) - COUNT'(ends);
    entered_q    <= entered_q + COUNT'(starts);
    left_q       <= left_q + COUNT'(ends);
    cycles_q     <= cycles_q + (2 * COUNT)'(is_busy);
    last_count_q <= more(last_count_q, last_wrongs);
    keep_count_q <= more(keep_count_q, keep_wrongs);
    refused_q    <= refused_q + COUNT'(is_refused) + COUNT'(is_read && !is_known);
    if (clear || !aresetn) begin
      entered_q    <= '0;
      left_q       <= '0;
      cycles_q     <= '0;
      last_count_q <= '0;
      keep_count_q <= '0;
      refused_q    <= '0;
    end
    if (!aresetn) inside_q <= '0;
  end

  // -- reads ---------------------------------------------------------------------------------

  logic [31:0] word;
  logic [COUNT-1:0] low, high_q;
  logic [5:0] wanted;

  assign wanted         = s_axil_araddr[7:2];
  assign s_axil_arready = !s_axil_rvalid || s_axil_rready;
  assign is_read        = s_axil_arvalid && s_axil_arready;
  assign low            = cycles_q[COUNT-1:0];
  assign is_known       = wanted < WORDS;

  always_comb begin
    case (wanted)
      6'd0: word = NAME;
      6'd1: word = {31'b0, run};
      6'd2: word = {25'b0, HAS_RELOAD ? load_state : 4'b0, |keep_errors, |last_errors, is_busy};
      6'd3: word = 32'(entered_q);
      6'd4: word = 32'(left_q);
      6'd5: word = 32'(low);
      6'd6: word = 32'(high_q);
      6'd7: word = {16'(keep_count_q), 16'(last_count_q)};
      6'd8: word = 32'(refused_q);
      6'd9: word = HAS_RELOAD ? load_count : '0;
      6'd10: word = HAS_RELOAD ? load_crc : '0;
      default: word = '0;
    endcase
  end

  always_ff @(posedge aclk) begin
    if (s_axil_rready) s_axil_rvalid <= 1'b0;
    if (is_read) begin
      s_axil_rvalid <= 1'b1;
      s_axil_rdata  <= word;
      s_axil_rresp  <= is_known ? OKAY : SLVERR;
      if (wanted == 6'd5) high_q <= cycles_q[2*COUNT-1:COUNT];
    end
    if (!aresetn) begin
      s_axil_rvalid <= 1'b0;
      high_q        <= '0;
    end
  end

  wire logic unused_ok = &{
    1'b0, s_axil_awprot, s_axil_arprot, s_axil_awaddr[1:0], s_axil_araddr[1:0],
    load_ready, load_state, load_count, load_crc
  };

endmodule

`default_nettype wire
